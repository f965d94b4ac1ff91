# Writes OUTPUT: a C++ file with the text of every preset below ROOT. Run as a script at build time:
#   cmake -DROOT=configs -DOUTPUT=assets_data.cpp "-DFILES=models/a.json;..." -P embed_assets.cmake
# String literals are cut at 8 KiB, which every compiler accepts.
set(body "")
set(table "")
set(index 0)
list(SORT FILES)
foreach(file IN LISTS FILES)
  file(READ "${ROOT}/${file}" text)
  string(APPEND body "constexpr char kText${index}[] =\n")
  string(LENGTH "${text}" length)
  set(at 0)
  while(at LESS length)
    string(SUBSTRING "${text}" ${at} 8192 part)
    string(APPEND body "    R\"ASSET(${part})ASSET\"\n")
    math(EXPR at "${at} + 8192")
  endwhile()
  if(length EQUAL 0)
    string(APPEND body "    \"\"\n")
  endif()
  string(APPEND body "    ;\n")
  string(APPEND table "    {\"${file}\", std::string_view(kText${index}, sizeof(kText${index}) - 1)},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(
  WRITE "${OUTPUT}"
  "// Generated from configs/ at build time.\n#include \"sim/base/assets.h\"\n\nnamespace foretrain {\nnamespace {\n${body}\nconstexpr Asset kAssets[] = {\n${table}};\n}  // namespace\n\nstd::span<const Asset> assets() { return kAssets; }\n\n}  // namespace foretrain\n"
)
