# FILES (separated by |), lists of problems, become one C table in OUT: name of the file, and its lines without comments.
string(REPLACE "|" ";" FILES "${FILES}")
set(table "")
foreach(file ${FILES})
  get_filename_component(name ${file} NAME_WE)
  file(STRINGS ${file} lines)
  set(problems "")
  foreach(line ${lines})
    string(REGEX REPLACE "#.*" "" line "${line}")
    string(STRIP "${line}" line)
    if(line)
      string(APPEND problems "        \"${line}\",\n")
    endif()
  endforeach()
  string(APPEND table "    {\"${name}\", (const char *const[]){\n${problems}        NULL}},\n")
endforeach()
file(WRITE ${OUT}.tmp "/* generated from bench/ */
#include \"cli.h\"

const cli_set cli_sets[] = {
${table}    {NULL, NULL},
};
")
file(RENAME ${OUT}.tmp ${OUT})
