# The device stage on a stub CUDA runtime, and mutants of it, each of which breaks a rule that the
# stub must notice.
set(FM_ROOT ${PROJECT_SOURCE_DIR})
set(FM_STUB_SOURCES support/stub_cudart.c support/stub_streams.c ${FM_ROOT}/loader/device/device_host.c
    ${FM_ROOT}/loader/base/error.c ${FM_ROOT}/loader/base/mem.c)

# A plug-in from that source and the stub. One file, wherever it is: FEEDMILL_CUDA_LIBRARY names it.
function(fm_stub_plugin name source)
  add_library(${name} MODULE ${source} ${FM_STUB_SOURCES})
  target_include_directories(${name} PRIVATE ${FM_ROOT}/include ${FM_ROOT}/loader support
                                             support/stub_cuda)
  target_link_libraries(${name} PRIVATE fm_flags Threads::Threads)
endfunction()

# check_device with that plug-in; further arguments: the rule that must be seen broken.
function(fm_device_check name program plugin)
  add_test(NAME ${name} COMMAND ${program} ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS fault SKIP_RETURN_CODE 77 TIMEOUT ${FM_TEST_TIMEOUT}
    ENVIRONMENT "FM_MKJPEG=${FM_MKJPEG};FEEDMILL_CUDA_LIBRARY=$<TARGET_FILE:${plugin}>")
endfunction()

# The file with one passage changed, which must be there exactly once.
function(fm_mutate out file from to)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${FM_ROOT}/${file})
  file(READ ${FM_ROOT}/${file} text)
  string(FIND "${text}" "${from}" at)
  string(FIND "${text}" "${from}" last REVERSE)
  if(at EQUAL -1 OR NOT at EQUAL last)
    message(FATAL_ERROR "${file} has no or more than one: ${from}")
  endif()
  string(REPLACE "${from}" "${to}" text "${text}")
  file(CONFIGURE OUTPUT ${out} CONTENT "${text}" @ONLY)
endfunction()

# fm_plugin_mutant(name rule from to): of the CUDA plug-in. Not under sanitizers, which would see
# for themselves what some mutants do.
function(fm_plugin_mutant name rule from to)
  if(FM_SANITIZE)
    return()
  endif()
  set(source ${CMAKE_CURRENT_BINARY_DIR}/mutants/${name}.c)
  fm_mutate(${source} loader/device/cuda/device_cuda.c "${from}" "${to}")
  fm_stub_plugin(mutant_${name} ${source})
  target_compile_options(mutant_${name} PRIVATE -w)
  fm_device_check(device_mutant_${name} check_device mutant_${name} ${rule})
endfunction()

# The same of the stage, which is part of the library.
function(fm_stage_mutant name rule from to)
  if(FM_SANITIZE)
    return()
  endif()
  set(source ${CMAKE_CURRENT_BINARY_DIR}/mutants/${name}.c)
  fm_mutate(${source} loader/pipeline/device_stage.c "${from}" "${to}")
  add_executable(mutant_${name} fault/check_device.c ${source}
    $<FILTER:$<TARGET_OBJECTS:fm_objects>,EXCLUDE,device_stage\\.c>)
  target_include_directories(mutant_${name} PRIVATE ${FM_ROOT}/include ${FM_ROOT}/loader support
                                                    ${FM_CMOCKA_INCLUDE})
  target_compile_options(mutant_${name} PRIVATE -w)
  # The objects and their libraries by hand: as a target they would bring the stage itself.
  target_link_libraries(mutant_${name} PRIVATE fm_flags
    "$<FILTER:$<TARGET_PROPERTY:fm_objects,INTERFACE_LINK_LIBRARIES>,EXCLUDE,LINK_ONLY>" ${FM_CMOCKA})
  fm_device_check(device_mutant_${name} mutant_${name} stub_plugin ${rule})
endfunction()

fm_stub_plugin(stub_plugin ${FM_ROOT}/loader/device/cuda/device_cuda.c)
add_executable(check_device fault/check_device.c)
target_include_directories(check_device PRIVATE ${FM_ROOT}/loader support ${FM_CMOCKA_INCLUDE})
target_link_libraries(check_device PRIVATE fm_objects fm_flags ${FM_CMOCKA} ${CMAKE_DL_LIBS})
fm_device_check(check_device check_device stub_plugin)
add_executable(check_rejected fault/check_rejected.c)
target_include_directories(check_rejected PRIVATE ${FM_ROOT}/loader support ${FM_CMOCKA_INCLUDE})
target_link_libraries(check_rejected PRIVATE fm_objects fm_flags ${FM_CMOCKA} ${CMAKE_DL_LIBS})
add_dependencies(check_rejected stub_plugin)
fm_device_check(check_rejected check_rejected stub_plugin)

# Which call of the runtime does what is not done, or otherwise.
fm_plugin_mutant(pageable "pageable: a copy"
  "cudaHostRegister(memory, n_bytes, cudaHostRegisterPortable)" "cudaSuccess")
fm_plugin_mutant(no_wait unordered
  "check(cudaStreamWaitEvent(stream, device->slots[slot].copied, 0)" "check(cudaSuccess")
fm_plugin_mutant(no_mark unordered
  "check(cudaStreamWaitEvent(stream, slot->marked, 0)" "check(cudaSuccess")
fm_plugin_mutant(early_event unordered
  "    if (!status) status = check(cudaEventRecord(slot->copied, stream), \"cudaEventRecord\", error);\n    return status"
  "    return status")
fm_plugin_mutant(default_stream "default stream"
  "cudaStream_t stream = device->stream" "cudaStream_t stream = NULL")
fm_plugin_mutant(blocking_stream "default stream" "cudaStreamNonBlocking" "cudaStreamDefault")
fm_plugin_mutant(leaked_stream leak "check(cudaStreamDestroy(device->stream)" "check(cudaSuccess")
fm_plugin_mutant(leaked_event leak "check(cudaEventDestroy(device->slots[i].copied)" "check(cudaSuccess")
fm_plugin_mutant(leaked_memory leak "check(cudaFree(device->staging)" "check(cudaSuccess")
fm_plugin_mutant(leaked_registration leak "check(cudaHostUnregister(memory)" "check(cudaSuccess")
fm_plugin_mutant(leaked_context leak
  "device->driver.context_release(device->ordinal)" "cudaSuccess")
fm_plugin_mutant(ignored_copy unchecked
  "status = check(cudaMemcpyAsync(device->staging, job->from, job->n_bytes, kind, stream),"
  "status = check(((void)cudaMemcpyAsync(device->staging, job->from, job->n_bytes, kind, stream), cudaSuccess),")
fm_plugin_mutant(ignored_query unchecked
  "if (result != cudaErrorNotReady) status = check" "if (0) status = check")
fm_plugin_mutant(captured capture
  "if (result == cudaSuccess && captured == cudaStreamCaptureStatusNone) return FM_OK"
  "if (result != cudaErrorUnknown) return FM_OK")
fm_plugin_mutant(strict_capture capture
  "*mode = cudaStreamCaptureModeRelaxed" "*mode = cudaStreamCaptureModeGlobal")
fm_plugin_mutant(kept_context context
  "static int leave(fm_device *device, capture_mode mode, int status, fm_error *error) {"
  "static int leave(fm_device *device, capture_mode mode, int status, fm_error *error) {\n    device->driver.context_push(device->context);")

fm_stage_mutant(early_slot "slot reused"
  "stage->calls->poll(stage->device, slot, &error)"
  "(stage->calls->poll(stage->device, slot, &error), FM_OK)")
fm_stage_mutant(forgotten_drop unordered
  "    for (; stage->n_consumed < stage->n_queued; stage->n_consumed++)\n        return_output(loader, stage->n_consumed);"
  "stage->n_consumed = stage->n_queued;")
fm_stage_mutant(hasty_close "slot reused"
  "stage->calls->sync(stage->device, slot_of(stage, stage->n_done), NULL)" "FM_OK")

# The kernel's source on the CPU.
include(CheckLanguage)
check_language(CXX)
if(CMAKE_CXX_COMPILER)
  enable_language(CXX)
  add_executable(check_convert unit/check_convert.cpp ${FM_ROOT}/loader/device/device_host.c
    ${FM_ROOT}/loader/base/error.c ${FM_ROOT}/loader/base/mem.c)
  target_include_directories(check_convert PRIVATE ${FM_ROOT}/include ${FM_ROOT}/loader support/stub_cuda)
  target_link_libraries(check_convert PRIVATE fm_flags)
  add_test(NAME check_convert COMMAND check_convert)
  set_tests_properties(check_convert PROPERTIES LABELS unit TIMEOUT ${FM_TEST_TIMEOUT})
endif()

# The real thing.
if(FM_HAVE_CUDA)
  add_executable(test_cuda gpu/test_cuda.c)
  target_include_directories(test_cuda PRIVATE ${FM_ROOT}/loader support ${FM_CMOCKA_INCLUDE})
  target_link_libraries(test_cuda PRIVATE fm_objects fm_flags ${FM_CMOCKA} CUDA::cudart_static)
  add_dependencies(test_cuda feedmill_cuda)
  add_test(NAME test_cuda COMMAND test_cuda)
  set_tests_properties(test_cuda PROPERTIES
    ENVIRONMENT "FM_MKJPEG=${FM_MKJPEG};FEEDMILL_CUDA_LIBRARY=$<TARGET_FILE:feedmill_cuda>")
else()
  add_test(NAME test_cuda COMMAND sh -c
    "echo 'skipped: no nvcc, or a sanitizer is on: the plug-in for GPUs was not built'; exit 77")
endif()
set_tests_properties(test_cuda PROPERTIES LABELS gpu SKIP_RETURN_CODE 77 TIMEOUT ${FM_TEST_TIMEOUT})
