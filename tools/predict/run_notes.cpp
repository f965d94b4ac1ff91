// What a run ignores, does not model, or asks of a system that has it not.
#include "tools/predict/run_notes.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>

#include "models/plan/expert_plan.h"
#include "models/plan/plan_sharding.h"
#include "sim/base/assets.h"
#include "tools/predict/defaults.h"

namespace foretrain {
namespace {

/// In what a system has not: "KEY without OTHER".
constexpr std::string_view kWithout = " without ";

/// What of the model's file is ignored, or taken in another way than its family's code does.
void note_model(Run& run) {
  std::string ignored;
  for (const std::string& key : run.model.notes.ignored) {
    if (key == "source" || key == "parameters_published") continue;
    ignored += (ignored.empty() ? "" : ", ") + key;
  }
  if (!ignored.empty()) {
    run.notes.push_back("of the model these keys do not matter here and were ignored: " + ignored);
  }
  std::string unknown;
  for (const std::string& key : run.model.notes.unknown) {
    unknown += (unknown.empty() ? "" : ", ") + key;
  }
  if (!unknown.empty()) {
    run.notes.push_back(
        "keys of the model's file that are not known here, and not modelled if they "
        "change its shapes: " +
        unknown);
  }
  for (const std::string& part : run.model.notes.left_out) {
    run.notes.push_back("left out of " + run.model.type + " models: " + part);
  }
  const std::string& type = run.model.type;
  const bool gates = type == "llama" || type.starts_with("mistral") || type.starts_with("qwen");
  if (gates && run.model.activation != Activation::kSwiglu) {
    run.notes.emplace_back(
        "model.hidden_act other than silu: an MLP without a gate, as here; that " +
        ("of Hugging Face's " + type) + " keeps its gate");
  }
}

/// Positions that the file of a model states, which rotary ones may go beyond.
void note_positions(Run& run) {
  const Json* model = value_at(run.resolved, "/model");
  if (model == nullptr) return;
  const Json* named = model->string() != nullptr ? model : model->find("preset");
  Json file = model->object() != nullptr ? *model : Json(Json::Object{});
  if (file.find("max_position_embeddings") == nullptr && named != nullptr &&
      named->string() != nullptr) {
    const std::string path = "models/" + *named->string() + ".json";
    const Result<Json> shipped = parse_json(find_asset(path), path);
    if (shipped.ok() && shipped.value().object() != nullptr) file = shipped.value();
  }
  const Json* stated = file.find("max_position_embeddings");
  const std::int64_t longest = run.plan.sequence_length;
  if (stated == nullptr || !stated->is_number() || stated->number() <= 0) return;
  if (static_cast<double>(longest) <= stated->number()) return;
  run.notes.push_back("batch.sequence " + std::to_string(longest) +
                      " is longer than the model's max_position_embeddings, " +
                      dump_json(*stated, -1) + "; simulated all the same");
}

/// Layers that nobody laid out and that do not divide among the chunks of a pipeline.
void note_layout(Run& run) {
  const Plan& p = run.plan;
  const std::int64_t chunks = p.chunks();
  const std::int64_t layers = run.model.layers;
  if (chunks < 2 || run.model.is_network() || run.model.is_encoder_decoder()) return;
  if (layers % chunks == 0 || (layers + 2) % chunks == 0) return;
  const Json* stated = value_at(run.resolved, "/parallel/pipeline_layout");
  if (stated != nullptr && stated->array() != nullptr && !stated->array()->empty()) return;
  const Json* stages = value_at(run.resolved, "/pipeline_stages");
  const bool listed = stages != nullptr && stages->array() != nullptr && !stages->array()->empty();
  if (listed && stages->array()->front().find("layers") != nullptr) return;
  run.notes.push_back(std::to_string(layers) + " layers do not divide by " +
                      std::to_string(chunks) +
                      " chunks (parallel.pipeline x parallel.virtual_pipeline): the shorter chunks "
                      "stand first and last; some frameworks refuse such a run");
}

/// Precisions that the device has not, priced as if it had.
void note_precision(Run& run) {
  const Architecture made = run.cluster.device.architecture;
  const bool scales_blocks =
      is_nvidia(made) ? made >= Architecture::kBlackwell : made == Architecture::kCdna4;
  const Json mxfp8("mxfp8");
  const bool asked = asks(run, "/precision", mxfp8) || asks(run, "/precision/compute", mxfp8);
  if (asked && !scales_blocks) {
    run.notes.emplace_back("mxfp8: the matrix units of " + run.cluster.device.name +
                           " do not scale by blocks of 32; priced as if they did, at its fp8 rate");
  }
  if (run.plan.precision.one_copy && is_nvidia(made) && made < Architecture::kBlackwell) {
    run.notes.emplace_back("kernels.fp8_copies one: fp8 products of " + run.cluster.device.name +
                           " take operands in one order; priced as if they took both");
  }
}

/// Dispatchers of CUDA and NVSHMEM, priced elsewhere as if they were there.
void note_dispatcher(Run& run) {
  const ExpertPlan& experts = run.plan.experts;
  const DeviceSpec& device = run.cluster.device;
  if (!run.model.has_experts() || !experts.fused() || is_nvidia(device.architecture)) return;
  run.notes.push_back("moe.dispatcher " +
                      kDispatcherNames.at(static_cast<std::size_t>(experts.dispatcher)) +
                      ": its kernels are CUDA's; priced as if " + device.name + " had their like");
}

/// A system's buckets that this plan's gradients do not go through.
void note_buckets(Run& run) {
  const Plan& p = run.plan;
  const bool shards = p.sharding == Sharding::kOptimizer || p.sharding == Sharding::kGradients;
  if (!asks(run, "/gradients/bucketing", Json("contiguous")) || p.contiguous()) return;
  if (!shards || p.data == 1) return;
  const char* with = "this model or schedule";
  if (p.shard_group > 0) with = "sharding.group_size";
  const Offload& o = p.offload;
  if (o.states() && o.page > 0) with = "offload.page_mib";
  if (o.states() && o.device_share != 0) with = "offload.device_share";
  run.notes.push_back(std::string("gradients.bucketing contiguous is not modelled with ") + with +
                      ": gradients are reduced " +
                      (p.by_units() ? "unit by unit beside the backward pass, which may be faster"
                                    : "in equal ranges"));
}

void note_widened_buckets(Run& run) {
  if (!has_widened_buckets(run.model, run.plan)) return;
  run.notes.push_back("no device holds the gradients of a rank; they are simulated in buckets of " +
                      std::to_string(run.plan.bucket_elements) +
                      " parameters, wider than gradients.bucket_elements");
}

/// What the RUN asks for that its system has not.
void note_lacking(Run& run) {
  if (run.lacking.empty()) return;
  std::set<std::string> asked;
  for (const auto& [pointer, origin] : run.origins) {
    if (!is_users(origin)) continue;
    const Json* value = value_at(run.resolved, pointer);
    const Json* usual = value_at(run.usual, pointer);
    if (value == nullptr || (usual != nullptr && *value == *usual)) continue;
    std::string set = pointer.substr(1) + "=";
    std::replace(set.begin(), set.end(), '/', '.');
    set += value->string() != nullptr ? *value->string() : dump_json(*value, -1);
    if (const std::string lacked = lacked_by(run, set); !lacked.empty()) asked.insert(lacked);
  }
  for (const std::string& lacked : asked) {
    const std::string release = release_in(run);
    run.notes.push_back((release.empty() ? run.system : release) + " has no " + lacked +
                        ": simulated as others have it");
  }
}

}  // namespace

std::string lacked_by(const Run& run, const std::string& set,
                      const std::vector<std::string>& beside) {
  const auto of = [](const std::string& text, const std::string& key) {
    if (!text.starts_with(key)) return false;
    return text.size() == key.size() || text[key.size()] == '.' || text[key.size()] == '=';
  };
  const auto given = [&](const std::string& key) {
    std::string pointer = "/" + key;
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    const Json* value = value_at(run.resolved, pointer);
    if (value != nullptr && !(*value == Json("none"))) return true;
    return std::any_of(beside.begin(), beside.end(),
                       [&](const std::string& other) { return of(other, key); });
  };
  const auto lacks = [&](const std::string& entry) {
    const std::size_t without = entry.find(kWithout);
    if (!of(set, entry.substr(0, without))) return false;
    return without == std::string::npos || !given(entry.substr(without + kWithout.size()));
  };
  const auto found = std::find_if(run.lacking.begin(), run.lacking.end(), lacks);
  return found == run.lacking.end() ? "" : *found;
}

Status read_devices(const Json* devices, const std::string& source, Run& run) {
  if (devices == nullptr) return ok_status();
  const Json::Array* all = devices->array();
  const std::vector<std::string> known = {"nvidia", "amd", "tpu", "ascend"};
  const auto is_known = [&known](const Json& one) {
    return one.string() != nullptr &&
           std::find(known.begin(), known.end(), *one.string()) != known.end();
  };
  if (all == nullptr || !std::all_of(all->begin(), all->end(), is_known)) {
    return input_error(source + ": /devices: found " + describe(*devices) +
                       ", expected a list of nvidia, amd, tpu and ascend");
  }
  for (const Json& one : *all) run.devices.push_back(*one.string());
  return ok_status();
}

namespace {

/// The maker's name in a system's `devices`; "" for hosts, on which every system is lowered alike.
std::string maker_of(Architecture architecture) {
  if (is_nvidia(architecture)) return "nvidia";
  const std::string name(name_of(architecture));
  for (const auto& [begin, maker] :
       {std::pair{"cdna", "amd"}, std::pair{"tpu", "tpu"}, std::pair{"ascend", "ascend"}}) {
    if (name.starts_with(begin)) return maker;
  }
  return "";
}

/// What the cluster's devices are not priced by, or are priced without.
void note_devices(Run& run) {
  const std::string maker = maker_of(run.cluster.device.architecture);
  const std::vector<std::string>& known = run.devices;
  if (!known.empty() && !maker.empty() &&
      std::find(known.begin(), known.end(), maker) == known.end()) {
    run.notes.push_back(run.system + " does not run on " + run.cluster.device.name +
                        ": priced as if it did, with its defaults");
  }
  if (run.cluster.device.architecture == Architecture::kCpu && run.profile == nullptr) {
    run.notes.emplace_back(
        "the figures of " + run.cluster.device.name +
        " are generic, not of this machine; `foretrain calibrate --device host` measures it");
  }
  if (const std::string& note = run.cluster.device.rate_note; !note.empty()) {
    run.notes.push_back(run.cluster.device.name + ": " + note);
  }
  const bool torus = run.cluster.scale_up == ScaleUp::kTorus;
  if (torus) {
    run.notes.emplace_back(
        "memory is what the program's buffers take; what runtime and compiler of " +
        run.cluster.device.name + " need beside them is not known");
  } else if (!is_nvidia(run.cluster.device.architecture)) {
    run.notes.emplace_back(
        "communication buffers, context and allocator are taken as CUDA's; what " +
        run.cluster.device.name + " needs is not known");
  }
  note_precision(run);
  note_dispatcher(run);
}

/// Of every kind of device once.
void note_all_devices(Run& run) {
  if (run.cluster.pools.empty()) return note_devices(run);
  std::vector<std::string> notes = std::exchange(run.notes, {});
  const Cluster whole = std::exchange(run.cluster, {});
  for (const Cluster& pool : whole.pools) {
    run.cluster = pool;
    note_devices(run);
  }
  run.cluster = whole;
  for (std::string& note : run.notes) {
    if (std::find(notes.begin(), notes.end(), note) == notes.end())
      notes.push_back(std::move(note));
  }
  run.notes = std::move(notes);
}

}  // namespace

void note_limits(Run& run) {
  note_all_devices(run);
  note_model(run);
  note_positions(run);
  note_layout(run);
  note_lacking(run);
  note_buckets(run);
  note_widened_buckets(run);
  if (run.plan.schedule == Schedule::kInterleaved && run.plan.virtual_pipeline == 1) {
    run.notes.emplace_back("interleaved-1f1b without parallel.virtual_pipeline is 1f1b");
  }
  const ExpertPlan& experts = run.plan.experts;
  if (run.model.has_experts() && experts.routing == Routing::kNatural && experts.factor > 1) {
    std::array<char, 160> text{};
    std::snprintf(text.data(), text.size(),
                  "every rank is taken as the one with most tokens for its experts, %.2f times the "
                  "mean (moe.routing natural, moe.%s)",
                  experts.factor, experts.load.empty() ? "imbalance" : "load");
    run.notes.emplace_back(text.data());
  }
  for (const std::string& set : unlike_release(run)) {
    run.notes.push_back(release_in(run) + " always has " + set +
                        "; this run sets another value, which is simulated");
  }
  const bool counts = run.model.has_experts() && experts.dispatcher == Dispatcher::kAllToAll &&
                      experts.routing != Routing::kCapacity;
  if (counts && (run.graphs || run.plan.captured.moe)) {
    run.notes.emplace_back(
        "launch.cuda_graph: experts' exchanges are in graphs as if their sizes were known, which "
        "frameworks reach by padding (moe.routing capacity); graph_modules attn, moe_router and "
        "moe_preprocess leave them out");
  }
  if (run.plan.overlap.tensor && run.plan.tensor > 1 && !run.plan.rings()) {
    run.notes.emplace_back(
        "overlap.tensor needs parallel.sequence: the collectives of tensor parallelism stay whole");
  }
  if (run.plan.overlap.expert && run.model.experts.shared_width > 0 &&
      experts.dispatcher == Dispatcher::kAllToAll) {
    run.notes.emplace_back("overlap.expert: exchanges of tokens run beside the shared experts");
  }
}

}  // namespace foretrain
