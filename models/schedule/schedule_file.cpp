// A user's own order of passes, and how one is written.
#include <algorithm>
#include <cmath>

#include "models/plan/plan_reading.h"
#include "models/plan/plan_schedule.h"
#include "models/schedule/schedule.h"
#include "sim/base/json.h"

namespace foretrain {
namespace {

constexpr const char* kOrderSchema = "foretrain/schedule/1";

/// By ChunkPlacement.
const std::vector<std::string>& placement_names() {
  static const std::vector<std::string> names = {"round", "v", "bidirectional"};
  return names;
}

class FileReader {
 public:
  FileReader(const std::string& path, Plan& plan) : x_path(path), x_plan(plan) {}

  Status read(const Json& json) {
    const Json* stages = &json;
    std::string place = x_path + ": ";
    JsonReader reader(json, x_path, "");
    if (json.object() != nullptr) {
      std::string schema = kOrderSchema;
      reader.read("schema", schema);
      if (schema != kOrderSchema) {
        reader.fail("schema", "found \"" + schema + "\", expected \"" + kOrderSchema + "\"");
      }
      reader.read_enum("placement", x_plan.file.placement, placement_names());
      stages = reader.require("stages", "the list of every stage's passes");
      FT_TRY(reader.finish());
      place += "/stages";
    }
    if (x_plan.file.placement == ChunkPlacement::kV) {
      x_plan.virtual_pipeline = std::max<std::int64_t>(x_plan.virtual_pipeline, 2);
    }
    return read_stages(*stages, place);
  }

 private:
  Status read_stages(const Json& json, const std::string& place) {
    const Json::Array* stages = json.array();
    if (stages == nullptr || static_cast<std::int64_t>(stages->size()) != x_plan.pipeline) {
      const std::string found = stages == nullptr
                                    ? describe(json)
                                    : text(static_cast<std::int64_t>(stages->size())) + " lists";
      const std::string at = place.ends_with(": ") ? place : place + ": ";
      return input_error(at + "found " + found + ", expected a list for each of " +
                         text(x_plan.pipeline) + " stages");
    }
    x_plan.passes.assign(stages->size(), {});
    for (std::size_t s = 0; s < stages->size(); ++s) {
      const std::string at = place + "/" + text(static_cast<std::int64_t>(s));
      const Json::Array* list = (*stages)[s].array();
      if (list == nullptr) {
        return input_error(at + ": found " + describe((*stages)[s]) + ", expected a list");
      }
      for (std::size_t i = 0; i < list->size(); ++i) {
        FT_TRY(read_item((*list)[i], s, at + "/" + text(static_cast<std::int64_t>(i))));
      }
    }
    return ok_status();
  }

  /// A pass, or a list of passes that run as one.
  Status read_item(const Json& json, std::size_t stage, const std::string& place) {
    const Json::Array* items = json.array();
    std::vector<Pass>& out = x_plan.passes[stage];
    if (items == nullptr || items->empty() || items->front().array() == nullptr) {
      FT_ASSIGN(const Pass pass, read_pass(json, stage, place));
      out.push_back(pass);
      return ok_status();
    }
    std::vector<Pass> together;
    for (std::size_t i = 0; i < items->size(); ++i) {
      FT_ASSIGN(Pass pass,
                read_pass((*items)[i], stage, place + "/" + text(static_cast<std::int64_t>(i))));
      pass.joined = i + 1 < items->size();
      together.push_back(pass);
    }
    if (!can_join(together)) {
      return input_error(place +
                         ": only F and then B of another microbatch run as one, with or without "
                         "W of that B, or B and its W");
    }
    out.insert(out.end(), together.begin(), together.end());
    return ok_status();
  }

  static bool can_join(const std::vector<Pass>& passes) {
    std::size_t i = 0;
    if (passes.front().kind == PassKind::kForward) ++i;
    if (i == passes.size() || passes[i].kind != PassKind::kBackward) return false;
    const Pass& backward = passes[i];
    if (i == 1 && passes.front().microbatch == backward.microbatch) return false;
    if (++i == passes.size()) return i == 2;
    const Pass& weights = passes[i];
    return i + 1 == passes.size() && weights.kind == PassKind::kWeightGradients &&
           weights.chunk == backward.chunk && weights.microbatch == backward.microbatch;
  }

  Result<Pass> read_pass(const Json& json, std::size_t stage, const std::string& place) const {
    const Json::Array* items = json.array();
    if (items == nullptr || items->size() != 3 || !(*items)[0].is_number() ||
        !(*items)[1].is_number() || (*items)[2].string() == nullptr) {
      return input_error(place + ": found " + describe(json) +
                         ", expected [chunk, microbatch, \"F\", \"B\" or \"W\"]");
    }
    const double chunk = (*items)[0].number();
    const double microbatch = (*items)[1].number();
    const auto at = static_cast<std::int64_t>(stage);
    Pass pass;
    while (pass.chunk < x_plan.chunks_of_stage() &&
           static_cast<double>(x_plan.chunk_at(at, pass.chunk)) != chunk) {
      ++pass.chunk;
    }
    if (pass.chunk == x_plan.chunks_of_stage()) {
      return input_error(place + "/0: found " + describe((*items)[0]) + ", which is no chunk of " +
                         text(x_plan.chunks()) + " on stage " + text(at));
    }
    constexpr double kMost = 1 << 30;
    if (!(microbatch >= 0 && microbatch < kMost) || microbatch != std::floor(microbatch)) {
      return input_error(place + "/1: found " + describe((*items)[1]) +
                         ", expected a microbatch's number, the first is 0");
    }
    pass.microbatch = static_cast<std::int32_t>(microbatch);
    const std::string& kind = *(*items)[2].string();
    if (kind == "B") pass.kind = PassKind::kBackward;
    if (kind == "W") pass.kind = PassKind::kWeightGradients;
    if (kind != "F" && kind != "B" && kind != "W") {
      return input_error(place + "/2: found \"" + kind + "\", expected F, B or W");
    }
    return pass;
  }

  const std::string& x_path;
  Plan& x_plan;
};

/// A table that is tied on one stage is the gradients' of both ends, which are reduced after the
/// first chunk's last pass.
Status check_tied(const Model& model, const Plan& plan) {
  const std::int64_t stage = plan.stage_of(plan.chunks() - 1);
  const bool shared = model.tied_embeddings && plan.chunks() > 1 && plan.stage_of(0) == stage;
  if (!shared || !plan.splits_backward()) return ok_status();
  std::int64_t last = -1;
  for (const Pass& pass : plan.passes[static_cast<std::size_t>(stage)]) {
    if (pass.kind == PassKind::kWeightGradients) last = plan.chunk_at(stage, pass.chunk);
  }
  if (last != plan.chunks() - 1) return ok_status();
  return unsupported("with a tied embedding the last W of chunk 0 must come after the last W of " +
                     ("chunk " + text(last)) + ", which adds to the same gradients");
}

}  // namespace

Status read_schedule_file(const Json& json, const std::string& path, Plan& plan) {
  FT_TRY(FileReader(path, plan).read(json));
  const auto splits = [](const std::vector<Pass>& list) {
    return std::any_of(list.begin(), list.end(),
                       [](const Pass& pass) { return pass.kind == PassKind::kWeightGradients; });
  };
  if (std::none_of(plan.passes.begin(), plan.passes.end(), splits)) return ok_status();
  for (auto& list : plan.passes) {
    for (Pass& pass : list) {
      if (pass.kind == PassKind::kBackward) pass.kind = PassKind::kInputGradients;
    }
  }
  return ok_status();
}

Status check_schedule_file(const Model& model, const Plan& plan) {
  for (std::size_t s = 0; s < plan.passes.size(); ++s) {
    for (std::size_t i = 0; i < plan.passes[s].size(); ++i) {
      const std::int64_t found = plan.passes[s][i].microbatch;
      if (found < plan.microbatches()) continue;
      return input_error(plan.file.path + ": found microbatch " + text(found) + " in pass " +
                         text(static_cast<std::int64_t>(i)) + " of stage " +
                         text(static_cast<std::int64_t>(s)) + ", expected one of " +
                         text(plan.microbatches()) + " microbatches, the first is 0");
    }
  }
  const auto named = [&plan](const Status& status) {
    if (status.ok()) return status;
    Error error = status.error();
    error.message = plan.file.path + ": " + error.message;
    return Status(error);
  };
  FT_TRY(named(check_passes(plan, plan.passes)));
  return named(check_tied(model, plan));
}

Result<std::string> schedule_text(const Plan& plan) {
  if (plan.shares_vocabulary() || plan.forwards > 1) {
    return unsupported("a file's passes are F, B and W, those of " + name_of(plan) + " are more");
  }
  std::string out = "{\"schema\": \"" + std::string(kOrderSchema) + "\", \"placement\": \"" +
                    placement_names()[static_cast<std::size_t>(plan.placement())] +
                    "\", \"stages\": [";
  const auto lists = passes_of(plan);
  for (std::size_t s = 0; s < lists.size(); ++s) {
    out += s == 0 ? "\n[" : ",\n[";
    bool joined = false;
    for (std::size_t i = 0; i < lists[s].size(); ++i) {
      const Pass& pass = lists[s][i];
      if (i > 0) out += ",";
      if (pass.joined && !joined) out += "[";
      const char* kind = pass.kind == PassKind::kForward           ? "F"
                         : pass.kind == PassKind::kWeightGradients ? "W"
                                                                   : "B";
      out += "[" + text(plan.chunk_at(static_cast<std::int64_t>(s), pass.chunk)) + "," +
             text(pass.microbatch) + ",\"" + kind + "\"]";
      if (joined && !pass.joined) out += "]";
      joined = pass.joined;
    }
    out += "]";
  }
  return out + "]}\n";
}

}  // namespace foretrain
