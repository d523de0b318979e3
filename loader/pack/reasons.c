#include "feedmill/pack.h"

const char *fm_pack_reason_text(int reason) {
    switch (reason) {
#define FM_X(name, value, text) \
    case value:                 \
        return text;
        FM_PACK_REASON_LIST(FM_X)
#undef FM_X
    default:
        return "unknown reason";
    }
}
