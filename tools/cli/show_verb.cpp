#include <algorithm>
#include <array>

#include "hardware/cluster.h"
#include "hardware/device.h"
#include "hardware/hardware_cost_model.h"
#include "hardware/presets.h"
#include "models/layers/layer.h"
#include "models/lower.h"
#include "models/plan/expert_plan.h"
#include "models/schedule/schedule.h"
#include "models/step/passes.h"
#include "sim/engine/quotient.h"
#include "tools/cli/verbs.h"
#include "tools/predict/run_file.h"
#include "tools/report/report.h"

namespace foretrain {
namespace {

/// Experts and latent attention, where the model has them.
void add_sparse(const Model& m, Json& out) {
  if (m.is_latent()) {
    out.set("q_lora_rank", m.latent.q_rank);
    out.set("kv_lora_rank", m.latent.kv_rank);
    out.set("qk_nope_head_dim", m.latent.nope);
    out.set("qk_rope_head_dim", m.latent.rope);
    out.set("v_head_dim", m.latent.value);
  }
  if (!m.has_experts()) return;
  const Experts& e = m.experts;
  out.set("num_experts", e.count);
  out.set("num_experts_per_tok", e.top_k);
  out.set("moe_intermediate_size", e.width);
  out.set("shared_expert_intermediate_size", e.shared_width);
  out.set("first_k_dense_replace", e.first_dense);
  out.set("moe_layer_freq", e.step);
  out.set("n_group", e.groups);
  out.set("topk_group", e.group_top_k);
  out.set("num_nextn_predict_layers", m.predict_layers);
  out.set("active_parameters", active_parameter_count(m));
}

/// "36 of mamba2 and experts": how many layers are of each kind, where there are several mixers.
void add_kinds(const Model& m, Json& out) {
  if (!m.norms.plain()) {
    out.set("norms", m.norms.before ? "before and behind branches" : "behind branches");
  }
  if (!m.is_hybrid()) return;
  constexpr std::array kMixers = {"",
                                  "attention",
                                  "mamba2",
                                  "short convolution",
                                  "gated delta net",
                                  "mamba",
                                  "attention beside mamba2"};
  static const char* const feed_forwards[] = {"", "mlp", "experts"};
  Json kinds{Json::Object{}};
  for (const LayersOfKind& of : m.kinds(false)) {
    std::string name = kMixers.at(static_cast<std::size_t>(of.kind.mixer));
    if (of.kind.mixes() && of.kind.feeds()) name += " and ";
    name += feed_forwards[static_cast<std::size_t>(of.kind.feed_forward)];
    if (of.kind.shape > 0) name += " of shape " + std::to_string(of.kind.shape);
    kinds.set(name, of.layers);
  }
  out.set("layers", std::move(kinds));
  if (!m.has_mixer(Mixer::kMamba2)) return;
  const StateSpace& s = m.hybrid.state_space;
  out.set("mamba_num_heads", s.heads);
  out.set("mamba_head_dim", s.head_dim);
  out.set("ssm_state_size", s.state);
  out.set("mamba_groups", s.groups);
  out.set("mamba_conv", s.taps);
  out.set("mamba_chunk_size", s.chunk);
}

Json model_json(const Model& m) {
  Json out{Json::Object{}};
  out.set("name", m.name);
  out.set("model_type", m.type);
  if (m.is_network()) {
    const ImageShape& image = m.network.image;
    out.set("image", Json::Array{image.channels, image.height, image.width});
    out.set("blocks", m.layers);
    out.set("classes", m.vocabulary);
    out.set("parameters", parameter_count(m));
    out.set("forward_flops", forward_flops(m.network));
    return out;
  }
  if (m.is_encoder_decoder()) {
    out.set("encoder_layers", m.encoder_layers);
    out.set("decoder_layers", m.decoder_layers);
    out.set("relative_attention_num_buckets", m.relative_buckets);
  } else {
    out.set("num_hidden_layers", m.layers);
  }
  out.set("hidden_size", m.hidden);
  out.set("num_attention_heads", m.heads);
  out.set("num_key_value_heads", m.kv_heads);
  out.set("head_dim", m.head_dim);
  out.set("intermediate_size", m.intermediate);
  out.set("vocab_size", m.vocabulary);
  out.set("learned_positions", m.positions);
  out.set("sliding_window", m.sliding_window);
  out.set("norm", m.norm == Norm::kLayerNorm ? "layer-norm" : "rms-norm");
  static const char* const activations[] = {"gelu",  "silu (gated)", "relu",
                                            "relu2", "gelu (gated)", "gelu_new"};
  out.set("activation", activations[static_cast<std::size_t>(m.activation)]);
  static const char* const positions[] = {"learned", "rope", "alibi", "none"};
  if (!m.is_encoder_decoder()) {
    out.set("position", positions[static_cast<std::size_t>(m.position)]);
  }
  out.set("tie_word_embeddings", m.tied_embeddings);
  out.set("qkv_bias", m.biases.qkv);
  out.set("projection_bias", m.biases.projection);
  out.set("mlp_bias", m.biases.mlp);
  out.set("norm_bias", m.biases.norm);
  out.set("qk_norm", m.qk_norm);
  out.set("use_parallel_residual", m.parallel_residual);
  if (m.parallel_residual) out.set("num_ln_in_parallel_attn", m.shared_norm ? 1 : 2);
  add_kinds(m, out);
  out.set("parameters", parameter_count(m));
  add_sparse(m, out);
  return out;
}

/// "pointer = value   (origin)" for every leaf.
void print_fields(const Json& json, const std::string& pointer,
                  const std::map<std::string, std::string>& origins, const std::string& inherited,
                  std::string& out) {
  const auto own = origins.find(pointer);
  const std::string& origin = own != origins.end() ? own->second : inherited;
  const Json::Object* object = json.object();
  if (object != nullptr && !object->empty()) {
    for (const auto& [key, value] : *object) {
      print_fields(value, pointer + "/" + key, origins, origin, out);
    }
    return;
  }
  std::string line = pointer.substr(1);
  std::replace(line.begin(), line.end(), '/', '.');
  if (line.size() < 40) line.append(40 - line.size(), ' ');
  out += line + " " + dump_json(json, -1);
  if (!origin.empty()) out += "   (" + origin + ")";
  out += "\n";
}

/// The same of what is not as in `usual`, with what it is there.
void print_changed(const Json& json, const Json* usual, const std::string& pointer,
                   const std::map<std::string, std::string>& origins, const std::string& inherited,
                   std::string& out) {
  if (usual != nullptr && *usual == json) return;
  const auto own = origins.find(pointer);
  const std::string& origin = own != origins.end() ? own->second : inherited;
  const Json::Object* object = json.object();
  if (object != nullptr && !object->empty()) {
    for (const auto& [key, value] : *object) {
      print_changed(value, usual == nullptr ? nullptr : usual->find(key), pointer + "/" + key,
                    origins, origin, out);
    }
    return;
  }
  const bool known = usual != nullptr && !usual->is_null() && usual->object() == nullptr;
  print_fields(json, pointer, {}, known ? origin + "; usual " + dump_json(*usual, -1) : origin,
               out);
}

/// What of the resolved RUN its system would not do by itself.
Json changed_json(const Json& json, const Json* usual) {
  const Json::Object* object = json.object();
  if (object == nullptr || usual == nullptr || usual->object() == nullptr) return json;
  Json out{Json::Object{}};
  for (const auto& [key, value] : *object) {
    const Json* other = usual->find(key);
    if (other == nullptr || !(*other == value)) out.set(key, changed_json(value, other));
  }
  return out;
}

/// With `sources` beside the fields, or as a member `sources` of the JSON.
Status print_object(Json json, const ShowArgs& args,
                    const std::map<std::string, std::string>& sources = {}) {
  if (args.json.empty()) {
    std::string out;
    print_fields(json, "", sources, "", out);
    return print(args.quiet, out);
  }
  Json listed{Json::Object{}};
  for (const auto& [pointer, source] : sources) listed.set(pointer, source);
  if (!sources.empty()) json.set("sources", std::move(listed));
  return write_output(args.json, dump_json(json) + "\n");
}

/// What a field that is not set comes to.
std::string derived_text(const Run& run) {
  const Plan& p = run.plan;
  std::string out;
  if (!run.model.is_network()) {
    const DropoutRates dropout = dropout_of(run.model, p);
    out += "  dropout of the residual stream " + fixed(dropout.hidden, 3) + ", of attention " +
           fixed(dropout.attention, 3) + "\n";
  }
  if (run.model.experts.count == 0) return out;
  return out + "  experts by " +
         kDispatcherNames.at(static_cast<std::size_t>(p.experts.dispatcher)) + ", routing " +
         kRoutingNames.at(static_cast<std::size_t>(p.experts.routing)) +
         ", the busiest rank's tokens " + fixed(busiest_load(p.experts), 2) + " times the mean\n";
}

Status show_run(const Run& run, const ShowArgs& args) {
  if (!args.json.empty()) {
    Json origins{Json::Object{}};
    for (const auto& [pointer, origin] : run.origins) origins.set(pointer, origin);
    Json out{Json::Object{}};
    out.set("run", run.resolved);
    out.set("origins", std::move(origins));
    out.set("model", model_json(run.model));
    out.set("cluster", to_json(run.cluster));
    return write_output(args.json, dump_json(out) + "\n");
  }
  std::string out;
  print_fields(run.resolved, "", run.origins, "RUN", out);
  out += "\nmodel\n";
  print_fields(model_json(run.model), "", {}, "", out);
  out += "\ncluster\n";
  print_fields(to_json(run.cluster), "", {}, "", out);
  out += "\nresolved plan\n  " + plan_text(run) + "\n  layers of each chunk";
  for (const std::int64_t layers : run.plan.pipeline_layout) out += " " + std::to_string(layers);
  out += "\n" + derived_text(run);
  for (const std::string& note : run.notes) out += "Note: " + note + "\n";
  return print(args.quiet, out);
}

Status show_changed(const Run& run, const ShowArgs& args) {
  if (!args.json.empty()) {
    Json out{Json::Object{}};
    out.set("run", changed_json(run.resolved, &run.usual));
    return write_output(args.json, dump_json(out) + "\n");
  }
  std::string out;
  print_changed(run.resolved, &run.usual, "", run.origins, "RUN", out);
  return print(args.quiet, out);
}

Status show_program(const Run& run, const ShowArgs& args) {
  if (args.program_rank >= run.cluster.accelerators) {
    return input_error("--program " + std::to_string(args.program_rank) + ": there are " +
                       std::to_string(run.cluster.accelerators) + " ranks, from 0");
  }
  FT_TRY(lowerable(run.model, run.plan));
  const Workload workload = lower(run.model, run.plan);
  const RankBinding& rank = workload.ranks[static_cast<std::size_t>(args.program_rank)];
  std::string out =
      "rank " + std::to_string(args.program_rank) + ": " +
      name_of(coordinates_of(run.plan, RankId(static_cast<std::size_t>(args.program_rank)))) + "\n";
  return print(args.quiet, out + text_of(workload.programs[rank.program.index()]));
}

Status show_schedule(const Run& run, const ShowArgs& args) {
  FT_ASSIGN(const std::string text, schedule_text(run.plan));
  return args.json.empty() ? print(args.quiet, text) : write_output(args.json, text);
}

Status show_step(const Run& run, const ShowArgs& args) {
  if (args.stage >= run.plan.pipeline) {
    return input_error("--stage " + std::to_string(args.stage) + ": the pipeline has stages 0 to " +
                       std::to_string(run.plan.pipeline - 1));
  }
  Result<std::string> text = step_text(run.model, run.plan, args.stage, args.after);
  if (!text.ok()) return input_error("--after: " + text.error().message);
  return print(args.quiet, text.value());
}

std::vector<PlacementId> places_of(const Actor& actor, const Work& work) {
  std::vector<PlacementId> places;
  if (const auto* collective = std::get_if<Collective>(&work)) {
    places.push_back(actor.group_places[collective->group.index()]);
  } else if (const auto* batch = std::get_if<P2PBatch>(&work)) {
    for (const Message& m : batch->messages) {
      places.push_back(actor.channel_places[m.channel.index()]);
    }
  }
  return places;
}

Error no_such_operation(const std::string& asked, const std::vector<std::string>& names) {
  const std::string near = nearest_name(asked, names);
  std::string all, found;
  for (const std::string& name : names) {
    all += (all.empty() ? "" : ", ") + name;
    if (name.find(asked) != std::string::npos) found += (found.empty() ? "" : ", ") + name;
  }
  return input_error("--why " + asked + ": no operation of that name" +
                     (near.empty() ? "" : " (did you mean \"" + near + "\"?)") +
                     (found.empty() ? "; there are: " + all : "; of like name: " + found));
}

/// How each distinct work of the ops named `args.why` is priced on the first rank of every Program.
Status show_why(const Run& run, const ShowArgs& args) {
  FT_TRY(lowerable(run.model, run.plan));
  const Workload workload = lower(run.model, run.plan);
  const std::unique_ptr<CostModel> model = cost_model_of(run, price_options(run));
  FT_ASSIGN(const Quotient quotient, make_quotient(workload, *model, false));
  std::vector<std::string> shown;
  std::vector<std::string> names;
  std::string out;
  for (const Actor& actor : quotient.actors) {
    const Program& program = workload.programs[actor.program.index()];
    for (const Segment& segment : program.segments) {
      for (const Op& op : segment.ops) {
        if (std::find(names.begin(), names.end(), op.name) == names.end()) names.push_back(op.name);
        if (op.name != args.why) continue;
        const Work& work = program.works[op.work.index()];
        const bool local = places_of(actor, work).empty();
        const CostModel& on = local ? model->on(actor.rank) : *model;
        const std::string text = segment.name + ": " + op.name + ": " + text_of(work) + "\n" +
                                 on.explain(work, places_of(actor, work)) + "\n";
        if (std::find(shown.begin(), shown.end(), text) != shown.end()) continue;
        shown.push_back(text);
        out += text;
      }
    }
  }
  return out.empty() ? no_such_operation(args.why, names) : print(args.quiet, out);
}

bool has(const std::string& kind, const std::string& name) {
  const std::vector<std::string> names = preset_names(kind);
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// What a file describes, by its schema or by a key that the others do not have; "" where that is
/// a RUN or nothing known.
std::string kind_of_file(const Json& file) {
  struct Mark {
    const char* schema;
    const char* kind;
    std::array<const char*, 3> keys;
  };
  constexpr std::array<Mark, 6> kMarks = {
      {{"foretrain/device/1", "devices", {"architecture"}},
       {"foretrain/cluster/1", "clusters", {"device", "accelerators_per_node"}},
       {"foretrain/fabric/1", "fabrics", {"kind", "levels"}},
       {"", "models", {"model_type", "num_hidden_layers", "layers"}},
       {"foretrain/software/1", "software", {"date"}},
       {"", "systems", {"defaults", "architectures"}}}};
  if (file.find("model") != nullptr || file.find("cluster") != nullptr) return "";
  // A file that builds on a preset is of its kind.
  if (const Json* preset = file.find("preset"); preset != nullptr && preset->string() != nullptr) {
    for (const char* kind : {"devices", "clusters", "fabrics"}) {
      if (has(kind, *preset->string())) return kind;
    }
  }
  const Json* schema = file.find("schema");
  for (const Mark& mark : kMarks) {
    if (schema != nullptr ? *schema == Json(mark.schema)
                          : std::any_of(mark.keys.begin(), mark.keys.end(), [&](const char* key) {
                              return key != nullptr && file.find(key) != nullptr;
                            })) {
      return mark.kind;
    }
  }
  return "";
}

/// Models, clusters, devices, fabrics, systems, software or reliability: what a RUN is made of, a
/// preset or a file; "" for what is none.
std::string kind_of_part(const std::string& name) {
  for (const char* kind :
       {"models", "clusters", "devices", "fabrics", "systems", "software", "reliability"}) {
    if (has(kind, name)) return kind;
  }
  if (has("runs", name)) return "";
  const Result<Json> file = load_preset("runs", name, "show");
  return file.ok() ? kind_of_file(file.value()) : "";
}

using Sources = std::map<std::string, std::string>;

/// Beside the fields of a data file: when they were last changed.
void add_month(const std::string& folder, const std::string& name, const std::string& pointer,
               Json* fields, Sources& sources) {
  const std::string month = figures_changed(folder, name);
  if (fields == nullptr || month.empty()) return;
  fields->set("figures_changed", month);
  sources[pointer + "/figures_changed"] = "month of the last change to the file";
}

/// The same of the device and the fabric that a cluster's file names.
void add_months(const std::string& cluster, Json& json, Sources& sources) {
  add_month("clusters", cluster, "", &json, sources);
  const Result<Json> file = load_preset("clusters", cluster, "show");
  if (!file.ok()) return;
  const Json* device = file.value().find("device");
  if (device != nullptr && device->string() != nullptr) {
    add_month("devices", *device->string(), "/device", json.find("device"), sources);
  }
  const Json* network = file.value().find("network");
  const Json* fabric = network == nullptr ? nullptr : network->find("topology");
  if (fabric != nullptr && fabric->object() != nullptr) fabric = fabric->find("preset");
  if (fabric == nullptr || fabric->string() == nullptr) return;
  add_month("fabrics", *fabric->string(), "/network/topology",
            json.find("network")->find("topology"), sources);
}

Status show_fabric(const ShowArgs& args) {
  Topology topology;
  double latency_us = 0;
  FT_TRY(read_topology(Json(args.name), "show", "", topology, latency_us));
  Json json = to_json(topology);
  json.set("latency_us", latency_us);
  Sources sources = fabric_sources(args.name);
  add_month("fabrics", args.name, "", &json, sources);
  return print_object(std::move(json), args, sources);
}

Status show_part(const std::string& kind, const ShowArgs& args) {
  if (kind == "models") {
    FT_ASSIGN(const Json json, load_preset("models", args.name, "show"));
    FT_ASSIGN(const Model model, read_model(json, "model " + args.name, ""));
    return print_object(model_json(model), args);
  }
  if (kind == "clusters") {
    FT_ASSIGN(const Cluster cluster, read_cluster(Json(args.name), "show", ""));
    Sources sources = cluster_sources(args.name);
    sources["/derived"] = "derived";
    Json json = to_json(cluster);
    add_months(args.name, json, sources);
    return print_object(std::move(json), args, sources);
  }
  if (kind == "devices") {
    FT_ASSIGN(const DeviceSpec device, read_device(Json(args.name), "show", ""));
    Sources sources = device_sources(args.name);
    Json json = to_json(device);
    add_month("devices", args.name, "", &json, sources);
    return print_object(std::move(json), args, sources);
  }
  if (kind == "fabrics") return show_fabric(args);
  FT_ASSIGN(const Json json, load_preset(kind, args.name, "show"));
  return print_object(json, args);
}

/// For a name that is no preset and no file, offers the nearest of all presets; refuses what has a
/// schema.
Status check_run_name(const std::string& name) {
  const Result<Json> run = load_preset("runs", name, "show");
  if (const Json* schema = run.ok() ? run.value().find("schema") : nullptr) {
    // A RUN has none: this is of another version or kind.
    return input_error(name + ": /schema: found " + describe(*schema) +
                       ", expected foretrain/device/1, foretrain/cluster/1 or foretrain/fabric/1");
  }
  if (run.ok() || has("runs", name)) return ok_status();
  std::vector<std::string> all;
  for (const std::string& kind : preset_kinds()) {
    for (const std::string& preset : preset_names(kind)) all.push_back(preset);
  }
  const std::string near = nearest_name(name, all);
  return input_error(near.empty() ? run.error().message
                                  : "show: no preset \"" + name +
                                        "\" and no such file (did you mean \"" + near + "\"?)");
}

}  // namespace

Status show(const ShowArgs& args) {
  const std::vector<Output> outputs = {{"--json", args.json}};
  FT_TRY(check_outputs(outputs, read_with(outputs, args.name, args.sets)));
  const bool wants_run = args.program_rank >= 0 || !args.why.empty() || args.schedule ||
                         args.step || args.changed || !args.sets.empty();
  if (!wants_run) {
    if (const std::string kind = kind_of_part(args.name); !kind.empty()) {
      return show_part(kind, args);
    }
    FT_TRY(check_run_name(args.name));
  } else if (!kind_of_part(args.name).empty()) {
    return input_error(
        "show: " + args.name +
        " is no RUN, which --set, --changed, --program, --why, --schedule and --step need; "
        "`foretrain list runs` "
        "lists the shipped ones");
  }
  FT_ASSIGN(const Run run, load_run(args.name, args.sets));
  FT_TRY(check_outputs(outputs, {profile_path(run.profile_source)}));
  warn_of_idle_keys(args.quiet, run);
  if (args.program_rank >= 0) return show_program(run, args);
  if (!args.why.empty()) return show_why(run, args);
  if (args.schedule) return show_schedule(run, args);
  if (args.step) return show_step(run, args);
  if (args.changed) return show_changed(run, args);
  return show_run(run, args);
}

}  // namespace foretrain
