// Pipeline schedules as data: what each stage does, in order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/plan/plan.h"

namespace foretrain {

/// The passes of `stage`, 0 .. pipeline - 1, for the schedules that are a rule of their own for
/// every stage.
///
/// gpipe: all forwards, then all backwards in reverse (Huang et al. 2019).
/// 1f1b: min(p - stage - 1, m) forwards, then one forward and one backward in turn (Narayanan et
/// al. 2019). interleaved-1f1b: chunks take turns every p microbatches; 2 (p - stage - 1) + (v - 1)
/// p forwards first, all when m = p (Narayanan et al. 2021; the warm-up of Megatron-LM).
/// `paired` (interleaved-1f1b, or one stage): one forward pass more first, so that the forward and
/// the backward pass of a turn do not need each other and run as one (Megatron-LM,
/// --overlap-moe-expert-parallel-comm).
/// bfs: all microbatches of a chunk before the next chunk, backward likewise (Lamy-Poirier, arXiv
/// 2211.05953).
///
/// 1f1b-interlaced (Lin et al., nnScaler, OSDI 2024): the vocabulary lies on all stages, whose
/// passes over it go between those of the layers, on every stage at once. Time goes in steps of one
/// pass: microbatch m goes forward through stage s in step s + 2m, its head's passes follow the
/// step of the last stage. Between two of these every stage takes one forward and one backward
/// pass, every second stage from the last but one on the forward pass first. A gradient takes one
/// step to the stage before, three where that stage takes its forward pass first: one step would
/// lead from the end of a backward pass into a forward pass half as long, and all would wait in
/// every turn. So up to 3p / 2 microbatches are kept, half as many again as in 1f1b.
///
/// 1f1b-vocab-1, 1f1b-vocab-2: see `vocabulary_passes`.
///
/// zb-h1, zb-h2 (Qi et al., arXiv 2401.10241): as 1f1b with the gradients of weights in passes of
/// their own, `stage` microbatches behind those of inputs; h2: twice the warm-up, 2 stage behind.
/// With equal passes no stage keeps more than p microbatches, h2: 2p - 1.
///
/// dualpipev, dualpipe (DeepSeek-AI, arXiv 2412.19437 and github.com/deepseek-ai/DualPipe): chunks
/// in the shape of a V, or a V from each side with a copy of the parameters for each. A forward
/// pass and the backward pass of another microbatch go as one; only the first and the last backward
/// passes leave their gradients of weights for later. What the two overlap: the exchanges of
/// experts (models/emit/interleave.cpp).
std::vector<Pass> schedule_passes(Schedule schedule, std::int64_t stage, std::int64_t pipeline,
                                  std::int64_t virtual_pipeline, std::int64_t microbatches,
                                  bool paired = false);

/// The lists of every stage for zb-v or chimera, for the durations of `plan.automatic`: of several
/// runs, in each of which a free stage takes the pass of least rank that it can, the one that ends
/// first. A pass ranks by its time in the chain of a microbatch's passes, and by some part of what
/// a stage works for a microbatch times the microbatches before it: a smaller part sends forward
/// passes ahead. Gradients of weights then go where a stage waits, which is what makes the order
/// stand unequal durations.
///
/// zb-v (arXiv 2405.15362), two chunks in the shape of a V; it keeps at most 2p passes. With equal
/// passes and free messages no stage waits between its passes from m = 2p on, give or take one.
/// chimera (Li and Hoefler 2021, arXiv 2107.06925), a pipeline from each side; at most p passes
/// kept. With m = p microbatches this is the paper's schedule; with more its authors join blocks of
/// p, whose bubbles between them do not come up here.
std::vector<std::vector<Pass>> ranked_passes(const Plan& plan);

/// The passes of `stage` for 1f1b-vocab-1 and 1f1b-vocab-2 (Yeung et al., arXiv 2411.05288): 1f1b
/// with k more forward passes first, k = 2 or 1 the barriers between a microbatch's last forward
/// and its first backward pass, and with the vocabulary's passes on every stage: S of a microbatch
/// after its forward pass on the last stage, T one turn of F + B later, each where the stage is
/// between two passes. What is exchanged has about a forward pass to travel beside the layers'
/// passes. No stage keeps more than p + k microbatches. The pattern takes B as twice F, or as three
/// times F where layers are computed again.
std::vector<Pass> vocabulary_passes(const Plan& plan, std::int64_t stage);

/// The passes of `stage` for 3f1b (Lin et al., nnScaler, OSDI 2024, for AlphaFold 2's recycling): n
/// forward passes and one backward pass of every microbatch, n = plan.forwards, of which only the
/// last forward pass keeps anything. In turn k every stage takes the first pass of microbatch k,
/// the second of k - p, ..., the last of k - (n - 1) p, and the backward pass of the one p - stage
/// - 1 before that: no stage keeps more than p - stage microbatches, as in 1f1b. From m = p
/// microbatches on the step takes m (n F + B) + (p - 1)(F + B) with equal passes and free messages,
/// so that the bubble is 1f1b's and a smaller part of the step. The paper gives the passes of a
/// microbatch, not their order.
std::vector<Pass> recycling_passes(const Plan& plan, std::int64_t stage);

/// The lists of every stage for zb-auto: the heuristic of Qi et al. (arXiv 2401.10241, section 3.1)
/// for given durations and memory. Warm-up: as many forwards as fit before the first backward
/// arrives. Then a forward and a backward in turn; gradients of weights fill the waits that they
/// fit into, and those that would make this stage the one that waits longest, and make room when
/// the limit is reached. Its three choices are tried in all 8 combinations; the one whose slowest
/// stage takes least from its first to its last pass is taken. zb-1p is `activations` p, zb-2p 2p.
std::vector<std::vector<Pass>> automatic_passes(const AutoSchedule& given, std::int64_t pipeline,
                                                std::int64_t microbatches);

/// Its order follows from how long passes take (`Plan::automatic`).
bool fits_durations(Schedule schedule);

/// The passes of every stage of `plan`, or of one.
std::vector<std::vector<Pass>> passes_of(const Plan& plan);
std::vector<Pass> passes_of(const Plan& plan, std::int64_t stage);

/// Reads a user's schedule, the content of `path`, into `plan`, whose pipeline is known: for every
/// stage a list of [chunk of the pipeline, microbatch, "F", "B" or "W"], in which passes that run
/// as one are a list within it; or {"placement": "round", "v" or "bidirectional", "stages": that
/// list}. A V has at least two chunks a stage. Without any "W" a "B" is the whole backward pass.
/// Left out: chunks that stand anywhere else, passes over a vocabulary that stages share.
Status read_schedule_file(const Json& json, const std::string& path, Plan& plan);

/// Refuses a file that names microbatches that there are not, misses a pass or can not run (see
/// `check_passes`), once all else of `plan` is known.
Status check_schedule_file(const Model& model, const Plan& plan);

/// The passes of `plan` as `read_schedule_file` reads them; unsupported where a file has no such
/// passes.
Result<std::string> schedule_text(const Plan& plan);

/// Every pass of every microbatch stands once, on the stage of its chunk; messages between two
/// stages are sent in the order in which they are taken; no stage waits for ever.
Status check_passes(const Plan& plan, const std::vector<std::vector<Pass>>& passes);

}  // namespace foretrain
