# FILES (separated by |) become byte arrays in OUT, found by their path below one of ROOTS. Two files of one name are an error.
string(REPLACE "|" ";" FILES "${FILES}")
string(REPLACE "|" ";" ROOTS "${ROOTS}")
set(names "")
cmake_policy(SET CMP0057 NEW) # IN_LIST
set(arrays "")
set(table "")
set(i 0)
foreach(file ${FILES})
  set(name ${file})
  foreach(root ${ROOTS})
    string(REGEX REPLACE "^${root}/" "" name "${name}")
  endforeach()
  if(name IN_LIST names)
    message(FATAL_ERROR "${file}: a device source named ${name} is there already; names are paths below ${ROOTS}")
  endif()
  list(APPEND names ${name})
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
  string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" bytes "${bytes}")
  string(APPEND arrays "static const unsigned char file_${i}[] = {\n${bytes}0};\n")
  string(APPEND table "    {\"${name}\", file_${i}, sizeof(file_${i}) - 1},\n")
  math(EXPR i "${i} + 1")
endforeach()
file(WRITE ${OUT}.tmp "/* generated from the sources named below */
#include \"core/internal.h\"
${arrays}const weft__embedded weft__embedded_files[] = {
${table}};
const size_t weft__embedded_count = ${i};
")
file(RENAME ${OUT}.tmp ${OUT})
