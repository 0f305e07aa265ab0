//! Sampling, reference. Twin of `shaders/sample.wgsl`.
//!
//! One [`SampleRow`](crate::plan::inputs::SampleRow) draws one token from `l`, a row of `vocab` f32 logits. What its
//! doc comment leaves open is fixed here; a kernel that follows this text draws the same token wherever the decision
//! is not a near-tie. The twin computes in f64 from f32 inputs; a kernel may use f32 (see *Accuracy*).
//!
//! **1. Bad rows.** By bits, as integers: a logit is bad when it is NaN or +∞, that is `(bits & 0x7fff_ffff) >=
//! 0x7f80_0000` and `bits != 0xff80_0000`. One bad logit, or no logit other than −∞, gives
//! `NUMERICAL_ERROR`, logprob 0 and an empty top list. So does a row of which bias, penalties and mask leave nothing
//! above −∞, or anything that overflows to +∞.
//!
//! **2. Adjusted logits `y`**, f32, one rounding per operation: `y = l`; `y += bias` if the row's bias names the token;
//! if history or the pending token names it: `y = y > 0 ? y / repetition : y · repetition`; with `count` = generated
//! (+ 1 for the pending token) `> 0`: `y -= count · frequency`, then `y -= presence`; mask bit clear: `y = −∞`. A `y`
//! whose exponent field is 0 (zeros of either sign, subnormals) is `+0`. The pending token is `feed[pending_slot]`,
//! read before any row of the batch writes its feed slot. Ids not below `vocab` in bias or history are ignored.
//! Candidates are the tokens with `y > −∞`; the others are never drawn.
//!
//! **3. Order.** Values compare by key: `key(y) = bits ^ (bits >> 31 ? 0xffff_ffff : 0x8000_0000)`, a u32 that orders
//! as the values do. `y_max` is the largest. Temperature 0: the answer is the lowest id with `key = key(y_max)`;
//! min-p, top-k and top-p are not looked at. Otherwise, for every candidate, `d = (y − y_max) / temperature` ≤ 0.
//!
//! **4. Kept set**, a threshold on the key, raised by each rule in turn:
//! - min-p (`min_p > 0`): keep `d ≥ ln(min_p)`.
//! - top-k (`0 < top_k`): of what is left, keep keys not below the `top_k`-th largest, ties counted one by one; fewer
//!   than `top_k` left: keep them.
//! - top-p (`top_p < 1`): of what is left, weights are integers `w = round(exp(d) · 2²⁴)`, `total = Σ w` (u64),
//!   `P = round(top_p · 2²⁰)` (computed on the host, 0..=2²⁰; `P = 2²⁰` keeps all, as does `top_p ≥ 1`). With
//!   `S(t) = Σ w over keys ≥ t`, keep keys `≥ t*`, the largest key of the row with `S(t*) · 2²⁰ ≥ P · total`, in u64.
//!   The largest value always stays. Vocabularies are below 2¹⁹, so nothing overflows.
//!
//! **5. Draw.** For token `id`: `x` = word `id mod 4` of Philox4x32-10 with key `(seed low word, choice)` and counter
//! `(position, id / 4, seed high word, 0)`; `u = ((x >> 8) + ½) · 2⁻²⁴` (exactly: never 0 or 1);
//! `score = d − ln(−ln u)`. The largest score of the kept set wins, ties to the lowest id.
//!
//! **6. Results.** `feed[feed_slot]` = the token id, or 0 for a `NUMERICAL_ERROR` row, so that a row already in flight
//! reads a valid id. No row of a batch writes a slot that another row of it reads or writes.
//! `logprob(id) = l[id] − l_max − ln Σ exp(l − l_max)` over the raw row, reported for the drawn token if `logprob` is
//! set, else 0. The top list holds the `top_logprobs` largest raw logits by key (zeros and subnormals as +0), ties by
//! lowest id; tokens of logit −∞ are left out, so it may be shorter than asked.
//!
//! *Accuracy.* In f32, `½ + (x >> 8)` does not fit when `x >= 2³¹`, and WGSL's `log` is only good to 2⁻²¹ absolute near
//! 1, where the winning draws lie. So with `k = x >> 8`: `k < 2²³`: `e = −ln((k + ½) · 2⁻²⁴)`; else
//! `v = (2²⁴ − 1 − k + ½) · 2⁻²⁴` (exact, ≤ ½), `s = v / (2 − v)`, `z = s²`,
//! `e = 2s · (1 + z/3 + z²/5 + z³/7 + z⁴/9 + z⁵/11 + z⁶/13)` (that is `−ln(1 − v)`); `score = d − ln e`, good to 2e-5.
//! Weights: `round()`, not `floor(w + 0.5)`, which fails near 2²⁴.
