// Names that other systems give to the keys of a RUN: configs/key_names.json.
#pragma once

#include <string>

#include "sim/base/result.h"

namespace foretrain {

/// An error of an unknown key which another system has says what it is here.
Error with_our_name(Error error);

/// What a preset of that name is that is no RUN's, and a RUN with it; "" if there is none.
std::string no_run(const std::string& name);

}  // namespace foretrain
