# Warnings for our own targets only; they are errors in the presets, not in a user's build.
add_library(foretrain_warnings INTERFACE)
target_compile_options(
  foretrain_warnings
  INTERFACE -Wall
            -Wextra
            -Wpedantic
            -Wconversion
            -Wshadow
            -Wold-style-cast
            -Woverloaded-virtual
            -Wnon-virtual-dtor
            -Wimplicit-fallthrough
            -ffp-contract=off
            # g++ 12 sees overlapping copies in operator+ of strings (GCC bug 105651).
            $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
