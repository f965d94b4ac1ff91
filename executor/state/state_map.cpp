#include "executor/state/state_map.h"

#include <algorithm>
#include <fstream>
#include <set>

namespace foretrain {
namespace {

namespace fs = std::filesystem;

StateRun run_of(const TensorSlice& slice, std::int64_t begin, std::int64_t end) {
  StateRun out;
  out.tensor = slice.tensor->name;
  out.layer = slice.layer;
  out.rows = slice.tensor->rows;
  out.width = slice.tensor->cols;
  out.first_row = slice.first_row;
  out.first_col = slice.first_col;
  out.cols = slice.cols;
  out.begin = begin;
  out.count = end - begin;
  return out;
}

/// Rows and columns of a tensor, the last ones excluded.
struct Rectangle {
  std::int64_t first_row = 0, last_row = 0, first_col = 0, last_col = 0;
  std::int64_t cols() const { return last_col - first_col; }
  std::int64_t elements() const { return (last_row - first_row) * cols(); }
};

/// The smallest that holds the run, without what pads the tensor.
Rectangle around(const StateRun& run) {
  Rectangle out;
  out.first_row = run.first_row + run.begin / run.cols;
  out.last_row = std::min(run.rows, run.first_row + (run.begin + run.count - 1) / run.cols + 1);
  out.first_row = std::min(out.first_row, out.last_row);
  out.first_col = run.first_col;
  out.last_col = std::min(run.width, run.first_col + run.cols);
  return out;
}

/// Elements of a rectangle, and which of them are known.
struct Known {
  explicit Known(const Rectangle& of)
      : rectangle(of),
        values(static_cast<std::size_t>(of.elements())),
        have(values.size(), false),
        left(of.elements()) {}
  Rectangle rectangle;
  std::vector<float> values;
  std::vector<bool> have;
  std::int64_t left;
};

/// Elements of a run that lie in one row of the rectangle: from element `first` of its slice on.
struct Stretch {
  std::int64_t first = 0, count = 0;
  std::size_t to = 0;  ///< place in the rectangle
};

std::vector<Stretch> stretches_of(const StateRun& run, const Rectangle& r) {
  std::vector<Stretch> out;
  const std::int64_t left = std::max(run.first_col, r.first_col);
  const std::int64_t right = std::min(run.first_col + run.cols, r.last_col);
  if (left >= right) return out;
  const std::int64_t last = run.first_row + (run.begin + run.count - 1) / run.cols;
  for (std::int64_t row = std::max(r.first_row, run.first_row + run.begin / run.cols);
       row < r.last_row && row <= last; ++row) {
    const std::int64_t line = (row - run.first_row) * run.cols - run.first_col;
    const std::int64_t from = std::max(line + left, run.begin);
    const std::int64_t to = std::min(line + right, run.begin + run.count);
    if (from >= to) continue;
    const std::int64_t col = from - line;
    out.push_back({from, to - from,
                   static_cast<std::size_t>((row - r.first_row) * r.cols() + col - r.first_col)});
  }
  return out;
}

bool all_known(const Known& known, const std::vector<Stretch>& stretches) {
  return std::all_of(stretches.begin(), stretches.end(), [&known](const Stretch& one) {
    const auto from = known.have.begin() + static_cast<std::ptrdiff_t>(one.to);
    return std::find(from, from + one.count, false) == from + one.count;
  });
}

/// Puts what one file has of the rectangle in its place.
Result<Bytes> take_from(const fs::path& path, const StateRun& run, std::size_t part, Known& known) {
  const std::vector<Stretch> stretches = stretches_of(run, known.rectangle);
  if (stretches.empty() || all_known(known, stretches)) return Bytes{0};
  const std::int64_t first = stretches.front().first;
  const std::int64_t end = stretches.back().first + stretches.back().count;
  std::error_code none;
  const std::uintmax_t there = fs::file_size(path, none);
  const auto wanted = static_cast<std::uintmax_t>(end - first);
  if (none || wanted > there / sizeof(float)) {
    return input_error("--resume: " + path.string() + ": is too short");
  }
  std::vector<float> values(wanted);
  std::ifstream file(path, std::ios::binary);
  const auto bytes = static_cast<std::streamsize>(values.size() * sizeof(float));
  file.seekg(run.at[part] + (first - run.begin) * static_cast<std::int64_t>(sizeof(float)));
  if (!file.read(reinterpret_cast<char*>(values.data()), bytes)) {
    return input_error("--resume: " + path.string() + ": is too short");
  }
  for (const Stretch& one : stretches) {
    for (std::int64_t i = 0; i < one.count; ++i) {
      const std::size_t to = one.to + static_cast<std::size_t>(i);
      known.values[to] = values[static_cast<std::size_t>(one.first - first + i)];
      if (!known.have[to]) --known.left;
      known.have[to] = true;
    }
  }
  return static_cast<Bytes>(bytes);
}

std::string text_of_layer(std::int32_t layer) {
  return layer < 0 ? "" : " of layer " + std::to_string(layer);
}

}  // namespace

std::vector<OwnRun> updated_runs(HostRank<float>& rank) {
  std::vector<OwnRun> out;
  for (const auto& update : rank.updated()) {
    for (const TensorSlice& slice : rank.memory().slices()) {
      if (slice.owner != update.owner) continue;
      const std::int64_t begin = std::max(update.begin, slice.element + slice.begin);
      const std::int64_t end = std::min(update.end, slice.element + slice.end);
      if (begin >= end) continue;
      const std::int64_t skip = begin - update.begin;
      OwnRun own{run_of(slice, begin - slice.element, end - slice.element),
                 {update.weights + skip, update.momentum + skip, update.variance + skip},
                 update.master == nullptr ? nullptr : update.master + skip};
      out.push_back(std::move(own));
    }
  }
  return out;
}

std::vector<OwnRun> held_weights(HostRank<float>& rank) {
  std::vector<OwnRun> out;
  for (const TensorSlice& slice : rank.memory().slices()) {
    OwnRun own{run_of(slice, slice.begin, slice.end), {}, nullptr};
    own.values[kWeightPart] = rank.memory().values(slice.owner) + slice.element + slice.begin;
    out.push_back(std::move(own));
  }
  return out;
}

Json json_of(const std::vector<StateRun>& runs) {
  Json::Array out;
  for (const StateRun& run : runs) {
    Json one{Json::Object{}};
    one.set("tensor", run.tensor);
    one.set("layer", run.layer);
    for (const auto& [name, value] :
         {std::pair("rows", run.rows), std::pair("width", run.width),
          std::pair("first_row", run.first_row), std::pair("first_col", run.first_col),
          std::pair("cols", run.cols), std::pair("begin", run.begin),
          std::pair("count", run.count)}) {
      one.set(name, value);
    }
    Json::Array at;
    for (const std::int64_t byte : run.at) at.emplace_back(byte);
    one.set("at", std::move(at));
    out.push_back(std::move(one));
  }
  return Json(std::move(out));
}

Result<std::vector<StateRun>> read_state_runs(const Json& json, const std::string& source) {
  std::vector<StateRun> out;
  if (json.array() == nullptr) return input_error(source + ": found no list of runs");
  for (std::size_t i = 0; i < json.array()->size(); ++i) {
    JsonReader reader((*json.array())[i], source, "/runs/" + std::to_string(i));
    StateRun run;
    constexpr JsonReader::IntRange kAny{0, std::int64_t{1} << 60};
    reader.read("tensor", run.tensor);
    reader.read("layer", run.layer, JsonReader::IntRange{-1, 1 << 30});
    reader.read("rows", run.rows, kAny);
    reader.read("width", run.width, kAny);
    reader.read("first_row", run.first_row, kAny);
    reader.read("first_col", run.first_col, kAny);
    reader.read("cols", run.cols, JsonReader::IntRange{1, kAny.high});
    reader.read("begin", run.begin, kAny);
    reader.read("count", run.count, JsonReader::IntRange{1, kAny.high});
    const Json* at = reader.require("at", "bytes where weights and moments begin");
    if (at != nullptr && (at->array() == nullptr || at->array()->size() != kStateParts)) {
      reader.fail("at", "found " + describe(*at) + ", expected three bytes");
    }
    for (std::size_t p = 0; !reader.failed() && p < kStateParts; ++p) {
      const Json& byte = (*at->array())[p];
      const auto* whole = std::get_if<std::int64_t>(&byte.value);
      if (whole == nullptr || *whole < kAny.low || *whole > kAny.high) {
        reader.fail("at", "found " + describe(byte) + ", expected the number of a byte");
      } else {
        run.at[p] = *whole;
      }
    }
    FT_TRY(reader.finish());
    out.push_back(std::move(run));
  }
  return out;
}

std::vector<std::string> tensors_of(const Workload& workload) {
  std::set<std::string> out;
  for (const Program& program : workload.programs) {
    for (const Frame& frame : program.frames) {
      for (const Buffer& buffer : program.layouts[frame.layout.index()].buffers) {
        for (const Piece& piece : buffer.pieces) {
          const Tensor& tensor = program.tensors[piece.tensor.index()];
          out.insert(tensor.name + text_of_layer(frame.layer + piece.layer) + ": " +
                     std::to_string(tensor.rows) + " x " + std::to_string(tensor.cols));
        }
      }
    }
  }
  return {out.begin(), out.end()};
}

StateSource::StateSource(std::vector<fs::path> files,
                         const std::vector<std::vector<StateRun>>& runs)
    : x_files(std::move(files)) {
  for (std::size_t file = 0; file < runs.size(); ++file) {
    for (const StateRun& run : runs[file]) {
      x_runs[{run.tensor, run.layer}].push_back({file, run});
    }
  }
}

Status StateSource::read(const StateRun& wanted, std::size_t part, float* into) const {
  Known known(around(wanted));
  const auto found = x_runs.find({wanted.tensor, wanted.layer});
  for (const Where& where : found == x_runs.end() ? std::vector<Where>() : found->second) {
    const StateRun& run = where.run;
    if (run.rows != wanted.rows || run.width != wanted.width) continue;
    FT_ASSIGN(const Bytes bytes, take_from(x_files[where.file], run, part, known));
    x_bytes += bytes;
  }
  if (known.left > 0) {
    const std::string folder = x_files.empty() ? "" : x_files.front().parent_path().string();
    return input_error("--resume: " + folder + ": lacks " + std::to_string(known.left) + " of " +
                       std::to_string(known.rectangle.elements()) + " elements of " +
                       wanted.tensor + text_of_layer(wanted.layer) +
                       " that this plan needs; resume on the plan that wrote it");
  }
  const Rectangle& r = known.rectangle;
  for (std::int64_t i = 0; i < wanted.count; ++i) {
    const std::int64_t row = wanted.first_row + (wanted.begin + i) / wanted.cols;
    const std::int64_t col = (wanted.begin + i) % wanted.cols;
    const bool pads = row >= r.last_row || col >= r.cols();
    into[i] =
        pads ? 0 : known.values[static_cast<std::size_t>((row - r.first_row) * r.cols() + col)];
  }
  return ok_status();
}

}  // namespace foretrain
