/* Version numbers of feedmill and the macro that marks its exported functions. */
#ifndef FEEDMILL_VERSION_H
#define FEEDMILL_VERSION_H

#define FM_VERSION_MAJOR 0
#define FM_VERSION_MINOR 1
#define FM_VERSION_PATCH 0
#define FM_VERSION_STRING "0.1.0"

#if defined(__GNUC__)
#define FM_API __attribute__((visibility("default")))
#define FM_CHECK_RESULT __attribute__((warn_unused_result))
#else
#define FM_API
#define FM_CHECK_RESULT
#endif

#endif
