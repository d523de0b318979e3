# FM_TEST_DECODE is "slow" or "instant": decoding of another speed, for the tests alone. See
# support/decode_speed.c.
if(FM_TEST_DECODE STREQUAL "slow")
  set(FM_TEST_WRAPPED fm_decoder_begin fm_decoder_start fm_decoder_read)
elseif(FM_TEST_DECODE STREQUAL "instant")
  set(FM_TEST_WRAPPED fm_loader_next fm_loader_stop)
else()
  message(FATAL_ERROR "FM_TEST_DECODE is '${FM_TEST_DECODE}'; it must be slow or instant")
endif()
target_sources(fm_objects PRIVATE tests/support/decode_speed.c)
target_compile_definitions(fm_objects PRIVATE
  FM_TEST_DECODE_SLOW=$<STREQUAL:${FM_TEST_DECODE},slow>)
foreach(function ${FM_TEST_WRAPPED})
  add_link_options(-Wl,--wrap=${function})
endforeach()
