//! The engine's interface for clients: submit a request, get one bounded receiver per choice. Dropping a receiver
//! cancels the choice.
//!
//! [`EngineHandle`] is cheap to clone and never blocks. Requests are validated here, before the queue; an accepted
//! request is well-formed. [`EngineInbox`] is the other end, owned by the engine: when it is dropped, every request
//! still in it receives an error.

pub use super::stats::{Stat, Stats, Value};
pub use crate::model::ClassHead;
pub use crate::model::pooled::{PooledLayer, Squash, through};
pub use crate::plan::figures::Figures;

use super::DeviceQueue;
use super::request::{BeamRoom, Event, ImageRoom, Pooling, Request, RequestError, SubmitError};
use crate::model::adapters::AdapterLayout;
use futures_channel::mpsc;
use futures_util::{Stream, StreamExt};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};

/// Yields tokens, then exactly one `Finished` or `Failed`. Dropping it cancels the choice.
#[derive(Debug)]
pub struct EventReceiver {
    events: mpsc::Receiver<Event>,
    is_complete: Arc<AtomicBool>,
}

impl EventReceiver {
    /// The next event, if there is one already.
    ///
    /// # Errors
    ///
    /// If there is none yet, or if there will be none.
    pub fn try_recv(&mut self) -> Result<Event, mpsc::TryRecvError> {
        self.events.try_recv()
    }

    /// Ends the choice because nothing more of it is wanted. It counts as one that stopped, not as aborted.
    pub fn stop(self) {
        self.is_complete.store(true, Ordering::Release);
    }
}

impl Stream for EventReceiver {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_next_unpin(context)
    }
}

/// The engine's end of a choice's channel.
#[derive(Debug)]
pub(super) struct EventSender {
    events: mpsc::Sender<Event>,
    is_complete: Arc<AtomicBool>,
}

impl EventSender {
    /// A channel with room for this many events.
    fn channel(events_max: usize) -> (Self, EventReceiver) {
        let (sender, receiver) = mpsc::channel(events_max);
        let is_complete = Arc::new(AtomicBool::new(false));
        (
            Self {
                events: sender,
                is_complete: is_complete.clone(),
            },
            EventReceiver {
                events: receiver,
                is_complete,
            },
        )
    }

    /// Sends an event, unless the receiver was dropped.
    pub(super) fn send(&mut self, event: Event) {
        drop(self.events.try_send(event));
    }

    /// How the receiver was dropped; `None` while it is there.
    pub(super) fn dropped(&self) -> Option<Dropped> {
        self.events.is_closed().then(|| {
            if self.is_complete.load(Ordering::Acquire) {
                Dropped::Complete
            } else {
                Dropped::Aborted
            }
        })
    }
}

/// How a receiver was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dropped {
    /// The client has gone.
    Aborted,
    /// The client has all that it wants.
    Complete,
}

/// State of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Not ready yet, or loading again after the device was lost.
    Loading,
    /// Accepts requests.
    Ready,
    /// Finishes the requests it has; refuses new ones.
    Draining,
    /// The engine has ended.
    Failed,
}

/// Facts about a loaded engine; fixed once it is ready.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineInfo {
    /// Device name, as the driver reports it.
    pub device: String,
    /// Device API: `cpu`, `vulkan`, …
    pub api: &'static str,
    /// Kernel tier, as text.
    pub tier: String,
    /// Vocabulary size: every token id is below it.
    pub vocab: u32,
    /// Whether the model can answer, not only give embeddings.
    pub has_head: bool,
    /// Whether it is an encoder, which computes a sequence in one step.
    pub computes_whole_sequences: bool,
    /// Its head for classes: what makes logits of pooled rows.
    pub classes: Option<Arc<ClassHead>>,
    /// Layers that follow the pooled rows of a text.
    pub dense: Arc<[PooledLayer]>,
    /// Whether the tokens of the two texts of a pair differ: [`Request::second_text`].
    pub marks_texts: bool,
    /// Maximum tokens of prompt and answer together.
    pub max_model_len: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// KV blocks of all groups.
    pub blocks: u32,
    /// Bytes of the KV pool.
    pub kv_bytes: u64,
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// The size of the model.
    pub figures: Figures,
    /// Maximum sequences that run at once.
    pub max_num_seqs: u32,
    /// Where the seeds of requests come from that bring none, if it was chosen.
    pub seed: Option<u64>,
    /// Token ids that end a choice.
    pub eos_token_ids: Vec<u32>,
    /// Length of an embedding; 0 if the model produces none.
    pub embedding_len: u32,
    /// Maximum drafts per sequence and step; 0 without speculation.
    pub num_speculative_tokens: u32,
    /// How long beams may become.
    pub beam_room: BeamRoom,
    /// Which matrices adapters may change, if there is room for any.
    pub adapters: Option<Arc<AdapterLayout>>,
    /// What images it reads, if it does.
    pub images: Option<ImageRoom>,
}

/// Checks that a request asks for what the model can do.
fn check_fits(request: &Request, info: &EngineInfo) -> Result<(), SubmitError> {
    if !info.has_head && request.pooling.is_none() {
        let message =
            "has no head for answers (no lm_head.weight), so it gives embeddings only".to_owned();
        return Err(SubmitError::Invalid {
            field: "model",
            message,
        });
    }
    let needs_whole = matches!(request.pooling, Some(Pooling::First | Pooling::All));
    if needs_whole && !info.computes_whole_sequences {
        let message = "must be last or mean: this model is no encoder, so that only the last token sees all others"
            .to_owned();
        return Err(SubmitError::Invalid {
            field: "pooling",
            message,
        });
    }
    if request.second_text.is_some() && !info.marks_texts {
        let message = "is set, but this model does not tell the texts of a pair apart".to_owned();
        return Err(SubmitError::Invalid {
            field: "second_text",
            message,
        });
    }
    Ok(())
}

/// State shared by both ends.
#[derive(Debug)]
struct Shared {
    status: AtomicU8,
    aborting: AtomicBool,
    info: OnceLock<EngineInfo>,
    /// Number of requests submitted and not admitted yet.
    queued: AtomicU32,
    queue_requests_max: u32,
    /// As of the last step. Nobody holds the lock for longer than a copy takes.
    stats: Mutex<Stats>,
}

/// A message from a handle to the engine.
pub(super) enum Message {
    Request(Box<Submission>),
    /// Wakes an idle engine, because its status has changed.
    Drain,
}

/// A checked request with one sender per choice.
pub(super) struct Submission {
    pub(super) request: Request,
    pub(super) senders: Vec<EventSender>,
}

/// The two ends of a new engine's channel. At most `queue_requests_max` requests wait for admission.
pub fn channel(queue_requests_max: u32) -> (EngineHandle, EngineInbox) {
    let (sender, receiver) = mpsc::unbounded();
    let shared = Arc::new(Shared {
        status: AtomicU8::new(Status::Loading as u8),
        aborting: AtomicBool::new(false),
        info: OnceLock::new(),
        queued: AtomicU32::new(0),
        queue_requests_max,
        stats: Mutex::default(),
    });
    let handle = EngineHandle {
        sender,
        shared: shared.clone(),
    };
    (
        handle,
        EngineInbox {
            receiver,
            shared,
            last_words: RequestError::Internal,
            device_queue: None,
        },
    )
}

/// Submits requests to an engine and monitors it.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    sender: mpsc::UnboundedSender<Message>,
    shared: Arc<Shared>,
}

impl EngineHandle {
    /// Queues a request; one receiver per choice. Never blocks.
    pub fn submit(&self, mut request: Request) -> Result<Vec<EventReceiver>, SubmitError> {
        match self.status() {
            Status::Loading => return Err(SubmitError::Loading),
            Status::Draining => return Err(SubmitError::ShuttingDown),
            Status::Failed => return Err(SubmitError::DeviceLost),
            Status::Ready => {}
        }
        let info = self.info().ok_or(SubmitError::Loading)?;
        check_fits(&request, info)?;
        request.check(info.vocab, info.max_model_len)?;
        request.check_tiles(info.images.as_ref())?;
        request.check_beams(info.max_num_seqs, &info.beam_room)?;
        request.params = request.params.normalized();
        let limit = self.shared.queue_requests_max;
        let queued =
            self.shared
                .queued
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |queued| {
                    (queued < limit).then_some(queued + 1)
                });
        queued.map_err(|_| SubmitError::Overloaded { limit })?;

        let prompt_len =
            u32::try_from(request.prompt.len()).expect("a checked prompt fits the context");
        // A token is generated in any case.
        let room = (info.max_model_len - prompt_len).max(1);
        let events_max = request
            .params
            .max_tokens
            .map_or(room, |wanted| wanted.min(room)) as usize
            + 4;
        // Worst case: every step reports the logprobs of only one prompt token.
        let events_max = events_max
            + request
                .params
                .prompt_logprobs
                .map_or(0, |_| prompt_len as usize);
        // Worst case: every step computes only one prompt token. The admission reports, too.
        let events_max = events_max
            + if request.report_progress {
                prompt_len as usize + 1
            } else {
                0
            };
        let channels = (0..request.params.n).map(|_| EventSender::channel(events_max));
        let (senders, receivers) = channels.unzip();
        let message = Message::Request(Box::new(Submission { request, senders }));
        self.sender
            .unbounded_send(message)
            .map_err(|_| SubmitError::ShuttingDown)?;
        Ok(receivers)
    }

    /// State of the engine.
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Facts about the loaded engine; `Some` once it has been ready.
    pub fn info(&self) -> Option<&EngineInfo> {
        self.shared.info.get()
    }

    /// Counters and gauges as of the last step.
    pub fn stats(&self) -> Stats {
        let queued = u64::from(self.shared.queued.load(Ordering::Acquire));
        let mut stats = *self.shared.stats();
        stats.requests_waiting += queued;
        stats
    }

    /// Refuses new requests from now on. The engine ends when the last accepted one is done.
    pub fn drain(&self) {
        if self
            .shared
            .change_status(&[Status::Loading, Status::Ready], Status::Draining)
        {
            // An engine that has ended needs no waking.
            drop(self.sender.unbounded_send(Message::Drain));
        }
    }

    /// Ends all requests with [`RequestError::ShuttingDown`], after the steps in flight at the latest.
    pub fn abort(&self) {
        self.drain();
        self.shared.aborting.store(true, Ordering::Release);
        drop(self.sender.unbounded_send(Message::Drain));
    }
}

/// The engine's end of the channel.
pub struct EngineInbox {
    receiver: mpsc::UnboundedReceiver<Message>,
    shared: Arc<Shared>,
    /// Error for requests that will never be admitted.
    last_words: RequestError,
    device_queue: Option<DeviceQueue>,
}

impl EngineInbox {
    /// Lets the engine take turns with others on its device.
    pub fn with_device_queue(mut self, queue: DeviceQueue) -> Self {
        self.device_queue = Some(queue);
        self
    }

    pub(super) fn device_queue(&self) -> Option<DeviceQueue> {
        self.device_queue.clone()
    }

    /// The next message, if one is ready.
    pub(super) fn take(&mut self) -> Option<Message> {
        self.receiver.try_recv().ok()
    }

    /// The next message; `None` when all handles are gone.
    pub(super) async fn wait(&mut self) -> Option<Message> {
        self.receiver.next().await
    }

    pub(super) fn is_draining(&self) -> bool {
        self.shared.status() == Status::Draining
    }

    /// Whether running requests are to be ended too.
    pub(super) fn is_aborting(&self) -> bool {
        self.shared.aborting.load(Ordering::Acquire)
    }

    /// Marks the engine as ready, unless it was drained in the meantime.
    pub(super) fn set_ready(&self, info: EngineInfo) {
        self.shared.info.get_or_init(|| info);
        self.set_loading(false);
    }

    /// Marks the start or end of a device recovery.
    pub(super) fn set_loading(&self, loading: bool) {
        let (from, to) = if loading {
            (Status::Ready, Status::Loading)
        } else {
            (Status::Loading, Status::Ready)
        };
        self.shared.change_status(&[from], to);
    }

    /// Marks the engine as failed.
    pub(super) fn set_failed(&mut self, last_words: RequestError) {
        self.last_words = last_words;
        self.shared.change_status(
            &[Status::Loading, Status::Ready, Status::Draining],
            Status::Failed,
        );
    }

    /// Publishes the engine's counters; `dequeued` is the number of requests that left the queue since the last call.
    pub(super) fn publish(&self, stats: &Stats, dequeued: u32) {
        // In this order a request may be counted twice for a moment, but is never missed.
        *self.shared.stats() = *stats;
        self.shared.queued.fetch_sub(dequeued, Ordering::Release);
    }
}

impl Drop for EngineInbox {
    /// Sends requests that arrived too late their terminal event.
    fn drop(&mut self) {
        let error = if self.is_draining() {
            RequestError::ShuttingDown
        } else {
            self.last_words
        };
        self.shared
            .change_status(&[Status::Loading, Status::Ready], Status::Failed);
        self.receiver.close();
        while let Some(message) = self.take() {
            if let Message::Request(submission) = message {
                for mut sender in submission.senders {
                    sender.send(Event::Failed(error));
                }
            }
        }
    }
}

impl Shared {
    fn stats(&self) -> MutexGuard<'_, Stats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self) -> Status {
        const STATES: [Status; 4] = [
            Status::Loading,
            Status::Ready,
            Status::Draining,
            Status::Failed,
        ];
        STATES[self.status.load(Ordering::Acquire) as usize]
    }

    fn change_status(&self, from: &[Status], to: Status) -> bool {
        self.status
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |status: u8| {
                from.iter()
                    .any(|&from| from as u8 == status)
                    .then_some(to as u8)
            })
            .is_ok()
    }
}
