// A 128-bit integer, for products of two times or sizes.
#pragma once

namespace foretrain {

// Not in ISO C++; __extension__ says that this is known. Only a typedef can carry it.
__extension__ typedef __int128 Int128;  // NOLINT(modernize-use-using)

}  // namespace foretrain
