// Runs the foretrain binary as a user's shell would.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sim/base/json.h"

namespace foretrain {

struct CommandResult {
  int exit_code = -1;  ///< 128 + the signal's number if one ended it; -1 if it did not start
  std::string out, err;
  double wall_s = 0;
  double cpu_s = 0;  ///< of the process, whatever else the machine does
};

/// A folder of its own that goes away with the test; `run` starts foretrain inside it.
class Workplace {
 public:
  Workplace();
  ~Workplace();
  Workplace(const Workplace&) = delete;
  Workplace(Workplace&&) = delete;
  Workplace& operator=(const Workplace&) = delete;
  Workplace& operator=(Workplace&&) = delete;

  /// Standard input is empty, standard output and error are files (so nothing is a terminal).
  CommandResult run(const std::vector<std::string>& arguments) const;
  /// The same of the program that has a GPU of loops.
  CommandResult run_on_loop_gpu(const std::vector<std::string>& arguments) const;

  /// Writes a file into the folder.
  void write(const std::string& name, const std::string& text) const;
  bool has(const std::string& name) const;
  std::string read(const std::string& name) const;
  std::filesystem::path path(const std::string& name) const { return x_folder / name; }
  /// Names of all that lies in the folder, sorted.
  std::vector<std::string> files() const;

 private:
  CommandResult run_program(const std::string& program,
                            const std::vector<std::string>& arguments) const;
  std::filesystem::path x_folder;
};

/// `arguments`, then a --set of each of the `sets`.
std::vector<std::string> with_sets(std::vector<std::string> arguments,
                                   const std::vector<std::string>& sets);

/// `simulate RUN --json - --set ...`, parsed; a failure of the test if it does not succeed.
Json simulated(const Workplace& place, const std::string& run,
               const std::vector<std::string>& sets = {},
               const std::vector<std::string>& more = {});

/// The member at a path such as "memory/peak_gib"; null if there is none.
Json at(const Json& json, const std::string& path);

/// `json` without the members of that name at its top level.
Json without(const Json& json, const std::vector<std::string>& keys);

/// A small run, the base of most tests: 2 x 2 x 2 accelerators, GPT-3 125M.
extern const char* const kSmallRun;

/// What every refusal owes the user; `parts` must stand in the message.
void expect_refused(const Workplace& place, const CommandResult& result,
                    const std::vector<std::string>& parts,
                    const std::vector<std::string>& files = {"run.json"});

/// A workplace that holds kSmallRun as run.json, the same for all tests.
inline Workplace& small_place() {
  static Workplace place;
  if (!place.has("run.json")) place.write("run.json", kSmallRun);
  return place;
}

}  // namespace foretrain
