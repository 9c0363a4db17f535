# The rows of src/cpu/isa.h for the target's architecture, read through the preprocessor:
#   WEFT_ISAS                 names, lowest first
#   WEFT_ISA_FILES_<name>     all, or the word in the names of the sources compiled for it
#   WEFT_ISA_DEFINES_<name>   what a source compiled for it sees: see src/cpu/kernel.h
#   WEFT_ISA_FLAGS_<name>     the compiler's flags, one per feature
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cpu/isa.h)
file(WRITE ${CMAKE_BINARY_DIR}/isa.c "#include \"cpu/isa.h\"\nWEFT__ISA_LIST(ISA, )\n")
separate_arguments(WEFT_FLAGS_LIST UNIX_COMMAND "${CMAKE_C_FLAGS}")
execute_process(COMMAND ${CMAKE_C_COMPILER} ${WEFT_FLAGS_LIST} -I${PROJECT_SOURCE_DIR}/src -E -P ${CMAKE_BINARY_DIR}/isa.c
  OUTPUT_VARIABLE WEFT_ISA_TEXT RESULT_VARIABLE WEFT_ISA_FAILED)
string(REGEX MATCHALL "ISA\\([^)]*\\)" WEFT_ISA_ROWS "${WEFT_ISA_TEXT}")
if(WEFT_ISA_FAILED OR NOT WEFT_ISA_ROWS)
  message(FATAL_ERROR "src/cpu/isa.h: the preprocessor gave no rows: ${WEFT_ISA_TEXT}")
endif()

set(WEFT_ISAS "")
foreach(row ${WEFT_ISA_ROWS})
  string(REGEX REPLACE "^ISA\\(|\\)$|[ \n]" "" row "${row}")
  string(REPLACE "," ";" row "${row}")                       # the argument of the list is empty and comes first
  list(GET row 1 id)
  list(GET row 2 name)
  list(GET row 3 vectors)
  list(GET row 4 WEFT_ISA_FILES_${name})
  list(GET row 6 features)
  string(REPLACE NO_FEATURES "" features "${features}")
  string(REPLACE "|" ";" features "${features}")
  list(TRANSFORM features TOLOWER)
  list(TRANSFORM features PREPEND -m OUTPUT_VARIABLE WEFT_ISA_FLAGS_${name})
  set(WEFT_ISA_DEFINES_${name} WEFT__BUILD=${name} WEFT__BUILD_ID=WEFT__${id} WEFT__VECTORS_${vectors})
  list(APPEND WEFT_ISAS ${name})
endforeach()

# An object library of sources compiled for an ISA.
add_library(weft_fewer_checks INTERFACE)
target_compile_options(weft_fewer_checks INTERFACE -fno-sanitize=null,alignment,object-size,pointer-overflow,bounds)

function(weft_isa_library target isa)
  add_library(${target} OBJECT ${ARGN})
  weft_configure(${target})
  target_compile_definitions(${target} PRIVATE ${WEFT_ISA_DEFINES_${isa}})
  target_compile_options(${target} PRIVATE ${WEFT_ISA_FLAGS_${isa}})
  if(isa STREQUAL scalar AND NOT WEFT_ISAS STREQUAL scalar) # the tests run it, and machines without the vectors
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>) # in half of -O3's time
  endif()
  if(WEFT_SANITIZE MATCHES undefined AND NOT WEFT_SANITIZE_ALL)
    target_link_libraries(${target} PRIVATE weft_fewer_checks) # behind weft_flags, whose options it takes back
  endif()
endfunction()
