// Puts together what the readers of profilers' files find.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "traces/activity.h"

namespace foretrain {

/// What the host was in when it launched something.
enum class HostRole : std::uint8_t { kPhase, kCollective, kOperator };

struct HostSpan {
  std::int64_t begin = 0, end = 0;
  std::uint32_t thread = 0;
  HostRole role = HostRole::kPhase;
  HostPhase phase = HostPhase::kUnknown;   ///< of kPhase
  Family collective = Family::kNcclOther;  ///< of kCollective
  std::int32_t detail = -1, call = -1;     ///< of kOperator
};

struct ActivityLaunch {
  std::uint64_t correlation = 0;
  std::int64_t at = 0;
  std::uint32_t thread = 0;
};

/// The event, and what only the builder needs to know.
struct RawEvent {
  GpuEvent event;
  std::uint64_t correlation = 0;
  std::uint32_t device = 0;
  Family collective = Family::kOther;  ///< as the event itself says; kOther: it does not
};

/// The phase that an annotation of that name is, kUnknown if none.
HostPhase phase_of_annotation(std::string_view name);

/// An annotation that bounds a step.
struct NamedStep {
  std::int64_t begin = 0, end = 0;
  std::string name;
};

/// The steps in order, apart: annotations of one name that overlap are one step (several threads or
/// streams have it), what lies within another step is none, a begin before the last end is moved to
/// it.
std::vector<StepWindow> merged_steps(std::vector<NamedStep> steps);

/// What a file says of itself.
struct TraceFacts {
  std::string source;
  std::unordered_map<std::uint32_t, std::string> devices;  ///< names by number
  std::int64_t rank = -1, world_size = 0;
  std::int64_t largest_group = 0;    ///< of a collective: the world is no smaller
  std::vector<NamedStep> steps;      ///< as the host annotates them
  std::vector<NamedStep> gpu_steps;  ///< as drawn on the GPU; where the host's are missing
  std::vector<std::string> notes;
};

class ActivityBuilder {
 public:
  explicit ActivityBuilder(std::string source) { facts.source = std::move(source); }

  /// Index of a name, which is classified once.
  std::uint32_t name(const std::string& name);
  FamilyClass class_of_name(std::uint32_t name) const { return class_of(x_names[name].of.family); }
  std::uint32_t thread(const std::string& process, const std::string& thread);
  std::uint16_t stream(std::uint32_t device, const std::string& stream);
  std::int32_t detail(LaunchDetail detail);
  /// A thread that runs backward passes, and one that drives the steps.
  void autograd(std::uint32_t thread) { x_autograd.insert(thread); }
  void drives(std::uint32_t thread) { x_drives.insert(thread); }

  std::vector<RawEvent> events;
  std::vector<ActivityLaunch> launches;
  std::vector<HostSpan> spans;
  TraceFacts facts;

  /// A trace for each device that has kernels; nothing is left in the builder.
  std::vector<ActivityTrace> take();

 private:
  struct Host {
    HostPhase phase = HostPhase::kUnknown;
    std::int32_t detail = -1, call = -1;
    Family collective = Family::kOther;
  };
  std::vector<Host> hosts_of_launches();
  static Host host_of(const ActivityLaunch& launch, const std::vector<const HostSpan*>& open);
  void find_launches();
  std::uint32_t named(const std::string& name, KernelClass of);
  std::vector<ActivityTrace> by_device();

  /// Numbers of texts.
  struct Numbers {
    std::unordered_map<std::string, std::uint32_t> names, threads, streams;
    std::unordered_map<std::string, std::int32_t> details;
  };
  Numbers x_numbers;
  std::vector<KernelName> x_names;
  std::vector<LaunchDetail> x_details;
  std::unordered_set<std::uint32_t> x_autograd, x_drives;
};

}  // namespace foretrain
