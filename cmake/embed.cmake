# FILES (separated by |) become byte arrays in OUT, found by their file name.
string(REPLACE "|" ";" FILES "${FILES}")
set(arrays "")
set(table "")
set(i 0)
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
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
