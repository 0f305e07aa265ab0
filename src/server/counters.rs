//! Metrics that the server itself measures: histograms of latencies and lengths, and the token rate.
//!
//! Histograms have fixed buckets and take no lock. Their size does not grow between scrapes.

use crate::platform::Instant;
use axum::http::{Method, StatusCode};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const FIRST_TOKEN_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const TOKEN_SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const REQUEST_SECONDS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0,
    20_000.0, 50_000.0, 100_000.0,
];

const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

/// Why an answer ended, as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Stop,
    Length,
    /// The client has gone.
    Abort,
    Error,
}

/// Numbers of answers by why they ended, which only grow.
#[derive(Debug, Default)]
pub(crate) struct Ends([AtomicU64; 4]);

impl Ends {
    pub(crate) fn count(&self, end: End) {
        self.0[end as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The numbers, by their names in vLLM.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 4] {
        [
            ("stop", End::Stop),
            ("length", End::Length),
            ("abort", End::Abort),
            ("error", End::Error),
        ]
        .map(|(name, end)| (name, self.0[end as usize].load(Ordering::Relaxed)))
    }
}

/// Declares the histograms: `/// help`, name of the field, name in `/metrics`, and the bounds of the buckets.
macro_rules! histograms {
    ($($(#[doc = $help:literal])+ $name:ident: $metric:literal in $bounds:expr;)*) => {
        /// Metrics that the server itself measures.
        pub(crate) struct Metrics {
            /// Choices and embeddings, by why they ended.
            pub(crate) ends: Ends,
            $($(#[doc = $help])+ pub(crate) $name: Histogram,)*
        }

        impl Default for Metrics {
            fn default() -> Self {
                Self { ends: Ends::default(), $($name: Histogram::new($bounds),)* }
            }
        }

        impl Metrics {
            /// All histograms, with their names and what they count.
            pub(crate) fn histograms(&self) -> Vec<(&'static str, &'static str, &Histogram)> {
                vec![$(($metric, concat!($($help),+).trim_ascii_start(), &self.$name),)*]
            }
        }
    };
}

histograms! {
    /// Time to the first token.
    time_to_first_token: "time_to_first_token_seconds" in FIRST_TOKEN_SECONDS;
    /// Time between two tokens.
    inter_token_latency: "inter_token_latency_seconds" in TOKEN_SECONDS;
    /// Mean time per token.
    request_time_per_output_token: "request_time_per_output_token_seconds" in TOKEN_SECONDS;
    /// Time of a whole answer.
    e2e_request_latency: "e2e_request_latency_seconds" in REQUEST_SECONDS;
    /// Time that a prompt waits.
    request_queue_time: "request_queue_time_seconds" in REQUEST_SECONDS;
    /// Time from admission to the first token.
    request_prefill_time: "request_prefill_time_seconds" in REQUEST_SECONDS;
    /// Time from admission to the last token.
    request_inference_time: "request_inference_time_seconds" in REQUEST_SECONDS;
    /// Time from the first token to the last.
    request_decode_time: "request_decode_time_seconds" in REQUEST_SECONDS;
    /// Tokens of a prompt.
    request_prompt_tokens: "request_prompt_tokens" in TOKENS;
    /// Tokens of a prompt that were computed, not found in the cache.
    request_prefill_kv_computed_tokens: "request_prefill_kv_computed_tokens" in TOKENS;
    /// Tokens that a request allows an answer.
    request_params_max_tokens: "request_params_max_tokens" in TOKENS;
    /// Choices that a request asks for.
    request_params_n: "request_params_n" in CHOICES;
    /// Tokens of an answer.
    request_generation_tokens: "request_generation_tokens" in TOKENS;
    /// Tokens of the longest answer of a request.
    request_max_num_generation_tokens: "request_max_num_generation_tokens" in TOKENS;
}

/// Counts observations in fixed buckets.
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// One more than `bounds`: the last bucket counts values above every bound.
    counts: Vec<AtomicU64>,
    sum_bits: AtomicU64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum_bits: AtomicU64::new(0),
        }
    }

    pub(crate) fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        // This never fails: `add` always returns `Some`.
        let _ = self
            .sum_bits
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bits| {
                Some((f64::from_bits(bits) + value).to_bits())
            });
    }

    pub(crate) fn write(&self, text: &mut String, name: &str, label: &str) {
        let counts = self
            .counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed));
        let sum = f64::from_bits(self.sum_bits.load(Ordering::Relaxed));
        write_histogram(text, name, label, self.bounds, counts, sum);
    }
}

/// Writes the samples of a histogram: `counts` of the values up to each of the `bounds`, and of those above.
pub(crate) fn write_histogram(
    text: &mut String,
    name: &str,
    label: &str,
    bounds: &[f64],
    counts: impl IntoIterator<Item = u64>,
    sum: f64,
) {
    let mut total = 0;
    for (bound, count) in bounds.iter().map(Some).chain([None]).zip(counts) {
        total += count;
        let bound = bound.map_or("+Inf".to_owned(), |bound| format!("{bound:?}"));
        let _ = writeln!(text, "vllm:{name}_bucket{{{label},le=\"{bound}\"}} {total}");
    }
    let _ = writeln!(
        text,
        "vllm:{name}_sum{{{label}}} {sum:?}\nvllm:{name}_count{{{label}}} {total}"
    );
}

/// Numbers of HTTP responses by route, method and class of status, under the names of the exporter that vLLM uses.
#[derive(Debug, Default)]
pub(crate) struct HttpResponses(Mutex<BTreeMap<(String, String, u16), u64>>);

impl HttpResponses {
    /// Counts a response. `route` is the path as the router has it, so that there are few; `None`: there is no such
    /// route.
    pub(crate) fn count(&self, route: Option<&str>, method: &Method, status: StatusCode) {
        let route = route.map(|route| match route.trim_end_matches('/') {
            "" => "/",
            route => route,
        });
        // A client may invent methods without end.
        let is_known = [
            Method::GET,
            Method::POST,
            Method::DELETE,
            Method::PUT,
            Method::PATCH,
            Method::HEAD,
            Method::OPTIONS,
        ]
        .contains(method);
        let method = if is_known { method.as_str() } else { "OTHER" };
        let key = (
            route.unwrap_or("none").to_owned(),
            method.to_owned(),
            status.as_u16() / 100,
        );
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(key).or_default() += 1;
    }

    pub(crate) fn write(&self, text: &mut String) {
        let name = "http_requests_total";
        let _ = writeln!(
            text,
            "# HELP {name} Requests by route, method and class of status.\n# TYPE {name} counter"
        );
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for ((route, method, class), count) in &*counts {
            let _ = writeln!(
                text,
                "{name}{{handler=\"{route}\",method=\"{method}\",status=\"{class}xx\"}} {count}"
            );
        }
    }
}

/// Minimum interval between two samples of the counters; a rate over a shorter time is meaningless.
const RATE_SECONDS_MIN: f64 = 0.2;

/// Tokens per second between the last two samples.
pub(crate) struct Throughput(Mutex<Look>);

struct Look {
    at: Instant,
    tokens: u64,
    rate: f64,
}

impl Default for Throughput {
    fn default() -> Self {
        Self(Mutex::new(Look {
            at: Instant::now(),
            tokens: 0,
            rate: 0.0,
        }))
    }
}

impl Throughput {
    pub(crate) fn rate(&self, tokens: u64) -> f64 {
        let mut look = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = look.at.elapsed().as_secs_f64();
        if seconds >= RATE_SECONDS_MIN {
            let rate = tokens.saturating_sub(look.tokens) as f64 / seconds;
            *look = Look {
                at: Instant::now(),
                tokens,
                rate,
            };
        }
        look.rate
    }
}
