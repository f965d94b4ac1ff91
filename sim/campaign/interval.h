// The best interval between checkpoints, in closed form. Young 1974; Daly 2006; Kokolis et al.
// 2025.
#pragma once

namespace foretrain {

/// Young's, s: sqrt(2 w M), for a stall of w seconds and a mean time to failure of M.
double young_interval(double stall_s, double mttf_s);

/// Daly's of higher order, s: sqrt(2 w M) (1 + sqrt(w / 2M) / 3 + (w / 2M) / 9) - w where
/// w < 2 M, else M.
double daly_interval(double stall_s, double mttf_s);

/// E[ETTR] = (1 - r (u + t / 2)) / (1 + w / t): of a job that fails r times a second, starts in u,
/// and stalls w after every t seconds of work. Holds where r (u + t / 2) is much less than 1
/// (Kokolis et al., arXiv 2410.21680).
double expected_ettr(double failures_per_s, double start_s, double interval_s, double stall_s);

/// Wall time over work of such a job, also where failures are frequent: every interval has to be
/// got through whole, (exp(r (t + w)) - 1) (1 / r + u) / t; a failure while it starts counts in u.
double expected_wall(double failures_per_s, double start_s, double interval_s, double stall_s);

}  // namespace foretrain
