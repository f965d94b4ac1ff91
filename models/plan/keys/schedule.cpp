#include "models/plan/keys/keys.h"
#include "models/plan/plan_schedule.h"

namespace foretrain {
namespace {

/// Where launches do not hide in which order the passes stand.
Sets automatic(const std::string& keys, const std::string& name = "zb-auto") {
  return {"parallel.pipeline=4", "parallel.tensor=1", "batch.global=32", "launch.dispatch_us=1",
          "schedule={\"name\":\"" + name + "\"" + keys + "}"};
}

PlanKey duration_key(const std::string& name, double least,
                     std::optional<double> ScheduleRequest::*member) {
  return PlanKey::number("schedule." + name,
                         [member](Request& r, double v) { r.schedule.*member = v; })
      .range(least, 1e6)
      .else_("the run's own");
}

void set_schedule(const PlanKey& key, JsonReader& reader, Request& out) {
  const Json* json = reader.take(key.name);
  const std::string* text = json == nullptr ? nullptr : json->string();
  if (text != nullptr && text->ends_with(".json")) {
    out.schedule.text = *text;
    return;
  }
  int choice = 0;
  if (!reader.read_choice(key.name, choice, key.choices)) return;
  out.schedule.name = static_cast<Schedule>(choice);
  if (*out.schedule.name == Schedule::kFile) {
    reader.fail(key.name, "found " + describe(*json) + ", expected the file's own path");
  }
}

void set_name(const PlanKey& key, JsonReader& reader, Request& out) {
  static constexpr Schedule kNamed[] = {Schedule::kZbAuto, Schedule::kZbV, Schedule::kChimera,
                                        Schedule::k3F1B};
  int choice = 0;
  out.schedule.as_object = true;
  if (reader.read_choice(key.name, choice, key.choices)) out.schedule.name = kNamed[choice];
  if (!reader.has(key.name)) reader.fail(key.name, "is missing, expected the schedule's name");
}

PlanKey schedule_key() {
  PlanKey out("schedule", KeyType::kChoice, set_schedule);
  out.choices = schedule_names();
  return std::move(out)
      .object_too()
      .else_("interleaved-1f1b with virtual_pipeline > 1, else 1f1b")
      .says("In which order a stage runs its passes.")
      .probe("3f1b")
      .probe("gpipe")
      .probe("1f1b", {"schedule=gpipe"})
      .probe("zb-h2")
      .probe("zb-v")
      .probe("zb-auto")
      .probe("dualpipe", {"model.preset=gpt3-125m", "model.tie_word_embeddings=false"})
      .probe("dualpipev")
      .probe("chimera", {"model.preset=gpt3-125m", "model.tie_word_embeddings=false"})
      .probe("bfs");
}

}  // namespace

PlanKeys schedule_keys() {
  const std::string seven = ",\"activations\":7";
  PlanKey name("schedule.name", KeyType::kChoice, set_name);
  name.choices = {"zb-auto", "zb-v", "chimera", "3f1b"};
  return {
      schedule_key(),
      std::move(name)
          .else_("required")
          .says("The schedule, where it has keys of its own.")
          .probe_set(R"(schedule={"name":"zb-v"})"),
      PlanKey::count("schedule.forwards", [](Request& r, auto v) { r.schedule.forwards = v; })
          .range(1, 64)
          .else_("3")
          .says("Of 3f1b: forward passes of a microbatch.")
          .probe_set(R"(schedule={"name":"3f1b","forwards":2})", {"schedule=3f1b"}),
      PlanKey::number("schedule.activations",
                      [](Request& r, double v) { r.schedule.activations = v; })
          .range(1, 1e6)
          .else_("as many as stages")
          .says("Of zb-auto: microbatches whose activations a stage has room for.")
          .probe_set(R"(schedule={"name":"zb-auto","activations":7})", automatic("")),
      PlanKey::number("schedule.weight_share",
                      [](Request& r, double v) { r.schedule.weight_share = v; })
          .range(0.01, 1)
          .else_("1")
          .says("Of zb-auto: the share of a microbatch's activations that its weight pass needs.")
          .probe_set(R"(schedule={"name":"zb-auto","activations":7,"weight_share":0.2})",
                     automatic(seven)),
      duration_key("forward_us", 1e-3, &ScheduleRequest::forward_us)
          .says("Time of a forward pass, for zb-auto, zb-v and chimera.")
          .probe_set(R"(schedule={"name":"zb-auto","activations":7,"forward_us":3})",
                     automatic(seven)),
      duration_key("input_gradients_us", 1e-3, &ScheduleRequest::input_gradients_us)
          .says("Time of a pass of the inputs' gradients.")
          .probe_set(R"(schedule={"name":"zb-auto","activations":5,"input_gradients_us":0.2})",
                     automatic(",\"activations\":5,\"input_gradients_us\":2"))
          .probe_set(R"(schedule={"name":"zb-v","input_gradients_us":3})", automatic("", "zb-v")),
      duration_key("weight_gradients_us", 1e-3, &ScheduleRequest::weight_gradients_us)
          .says("Time of a pass of the weights' gradients.")
          .probe_set(R"(schedule={"name":"zb-auto","activations":3,"weight_gradients_us":4})",
                     automatic(",\"activations\":3,\"weight_gradients_us\":1")),
      duration_key("transfer_us", 0, &ScheduleRequest::transfer_us)
          .says("Time of a message between stages.")
          .probe_set(R"(schedule={"name":"zb-auto","transfer_us":1})", automatic("")),
  };
}

}  // namespace foretrain
