// Names that other systems give to the keys of a RUN, which declare them (sim/base/key.h).
#pragma once

#include <map>
#include <string>

#include "sim/base/result.h"

namespace foretrain {

/// By each name, the key that it is here and what to know of it.
const std::map<std::string, std::string>& names_of_others();

/// Errors of keys and values that another system has say what they are here.
Error with_our_name(Error error);

/// What a preset of that name is that is no RUN's, and a RUN with it; "" if there is none.
std::string no_run(const std::string& name);

}  // namespace foretrain
