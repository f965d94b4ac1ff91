// perfetto_query TRACE SQL...: loads a trace with Perfetto's own trace processor and prints the
// first cell of each query's first row, one a line ("-" when there is no row).
//
// The processor is the one that Debian's chromium-shell carries for its browser tests. The library
// has no public header: what follows declares the little that is called, with the layout it had in
// Chromium 131 to 156. Should that change, the check fails to link or crashes; it never passes by
// accident, because the numbers must match. Needs libc++, like the library.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace base::test {

/// One word, returned through memory because its destructor is not trivial.
struct LoadStatus {
  std::uintptr_t word;
  ~LoadStatus() {}  // NOLINT
};

class QueryResultOrError {
 public:
  QueryResultOrError(const QueryResultOrError&) = delete;
  QueryResultOrError& operator=(const QueryResultOrError&) = delete;
  ~QueryResultOrError();

  std::vector<std::vector<std::string>> rows;  ///< the first one holds the column names
  std::string error;
};

class TestTraceProcessorImpl {
 public:
  TestTraceProcessorImpl();
  ~TestTraceProcessorImpl();
  LoadStatus ParseTrace(const std::vector<char>& trace);
  QueryResultOrError ExecuteQuery(const std::string& sql) const;

 private:
  char x_storage[256];  // more than any version has had
};

}  // namespace base::test

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: perfetto_query TRACE SQL...\n");
    return 2;
  }
  std::ifstream file(argv[1], std::ios::binary);
  const std::vector<char> trace((std::istreambuf_iterator<char>(file)),
                                std::istreambuf_iterator<char>());
  // Never destroyed: its threads outlive main.
  auto* processor = new base::test::TestTraceProcessorImpl();
  const base::test::LoadStatus status = processor->ParseTrace(trace);
  (void)status;
  for (int i = 2; i < argc; ++i) {
    const auto result = processor->ExecuteQuery(argv[i]);
    if (!result.error.empty()) {
      std::fprintf(stderr, "%s\n", result.error.c_str());
      std::_Exit(1);
    }
    const bool any = result.rows.size() > 1 && !result.rows[1].empty();
    std::printf("%s\n", any ? result.rows[1][0].c_str() : "-");
  }
  std::fflush(stdout);
  std::_Exit(0);
}
