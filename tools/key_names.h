// Names that other systems give to the keys of a RUN: configs/key_names.json.
#pragma once

#include "sim/base/result.h"

namespace foretrain {

/// An error of an unknown key which another system has says what it is here.
Error with_our_name(Error error);

}  // namespace foretrain
