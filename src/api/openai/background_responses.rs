//! Background responses: their state, and their events for current and later readers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::timeout;

use super::tenant_lru::{ENTRY, Item};
use super::tenant_quotas::{QuotaError, TenantQuotas};
use http::error::{ApiError, Kind};
use http::stream::Frames;

/// The largest size of a response's events. The oldest are dropped first [bytes].
const MAX_BYTES: usize = 4 << 20;
/// How long a client that cancels a response waits until the response has ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// A background response. Once it has ended, it is kept with the stored response.
pub struct BackgroundResponse {
    /// The new items of the input.
    pub input: Vec<Item>,
    events: Mutex<EventLog>,
    /// The number of events so far, and whether the response has ended.
    progress: watch::Sender<(u64, bool)>,
    cancelled: watch::Sender<bool>,
}

struct EventLog {
    /// The current response, as JSON.
    response: String,
    frames: VecDeque<Bytes>,
    /// The number of the first frame that is kept.
    first: u64,
    num_bytes: usize,
}

impl BackgroundResponse {
    /// Creates a background response. `response` is its JSON while it is queued.
    pub fn new(response: String, input: Vec<Item>) -> Arc<Self> {
        let events = EventLog { response, frames: VecDeque::new(), first: 0, num_bytes: 0 };
        let (progress, cancelled) = (watch::Sender::new((0, false)), watch::Sender::new(false));
        Arc::new(Self { input, events: Mutex::new(events), progress, cancelled })
    }

    fn lock(&self) -> MutexGuard<'_, EventLog> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The size in memory, which grows until the response has ended [bytes].
    pub fn num_bytes(&self) -> usize {
        let input: usize = self.input.iter().map(|item| ENTRY + item.0.capacity() + item.1.capacity()).sum();
        let events = self.lock();
        input + events.response.capacity() + events.num_bytes
    }

    pub fn response(&self) -> String {
        self.lock().response.clone()
    }

    pub fn set_response(&self, response: String) {
        self.lock().response = response;
    }

    pub fn push(&self, frame: Bytes) {
        let mut events = self.lock();
        events.num_bytes += frame.len();
        events.frames.push_back(frame);
        while events.num_bytes > MAX_BYTES && events.frames.len() > 1 {
            events.num_bytes -= events.frames.pop_front().map_or(0, |frame| frame.len());
            events.first += 1;
        }
        let count = events.first + events.frames.len() as u64;
        drop(events);
        self.progress.send_replace((count, false));
    }

    pub fn num_events(&self) -> u64 {
        self.progress.borrow().0
    }

    /// Marks the end of the events.
    pub fn close(&self) {
        self.progress.send_modify(|(_, has_ended)| *has_ended = true);
    }

    fn cancel(&self) {
        self.cancelled.send_replace(true);
    }

    pub async fn when_cancelled(&self) {
        // Waiting fails only if the sender is dropped, and the caller holds the sender.
        let _ = self.cancelled.subscribe().wait_for(|is_cancelled| *is_cancelled).await;
    }

    /// Cancels the response, and completes once it has sent its last event.
    pub async fn end_now(&self) -> Result<(), ApiError> {
        self.cancel();
        let mut progress = self.progress.subscribe();
        let ended = timeout(PATIENCE, progress.wait_for(|(_, has_ended)| *has_ended)).await;
        let late = |_| ApiError::new(Kind::Internal, format!("the response did not end within {} s", PATIENCE.as_secs()));
        ended.map(drop).map_err(late)
    }

    /// Reads the frames, starting with event `from`.
    ///
    /// # Errors
    /// Fails if these events are not kept any more, or do not exist yet.
    pub fn follow(self: &Arc<Self>, from: u64) -> Result<EventReader, ApiError> {
        let events = self.lock();
        if from < events.first {
            let message = format!("`starting_after` must be at least {}: older events of the response are not kept", events.first - 1);
            return Err(ApiError::field("starting_after", message));
        }
        if from > events.first + events.frames.len() as u64 {
            let last = (events.first + events.frames.len() as u64).saturating_sub(1);
            return Err(ApiError::field("starting_after", format!("`starting_after` must be at most {last}, the last event so far")));
        }
        drop(events);
        Ok(EventReader { live: self.clone(), next: from, progress: self.progress.subscribe() })
    }
}

/// A reader of a response's events.
pub struct EventReader {
    live: Arc<BackgroundResponse>,
    next: u64,
    progress: watch::Receiver<(u64, bool)>,
}

impl Frames for EventReader {
    async fn next(&mut self) -> Option<Vec<Bytes>> {
        let (count, _) = *self.progress.wait_for(|(count, has_ended)| *count > self.next || *has_ended).await.ok()?;
        let events = self.live.lock();
        if self.next >= count || self.next < events.first {
            // Either the events have ended, or the reader is so slow that its next event was dropped. In the second case the stream is cut,
            // so that it does not look complete.
            return None;
        }
        let frame = events.frames.get((self.next - events.first) as usize).cloned();
        self.next += 1;
        frame.map(|frame| vec![frame])
    }
}

/// The background responses that have not ended.
pub struct BackgroundResponses {
    inner: Mutex<BackgroundState>,
}

struct BackgroundState {
    places: TenantQuotas,
    by_id: HashMap<String, (String, Arc<BackgroundResponse>)>,
}

impl BackgroundResponses {
    pub fn new(max: usize) -> Self {
        Self { inner: Mutex::new(BackgroundState { places: TenantQuotas::new(max as u64), by_id: HashMap::new() }) }
    }

    fn lock(&self) -> MutexGuard<'_, BackgroundState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a response, if its tenant has a place left.
    pub fn insert(&self, tenant: &str, id: &str, live: Arc<BackgroundResponse>) -> Result<(), ApiError> {
        let mut inner = self.lock();
        inner.places.take(tenant, 1).map_err(|refused| {
            let message = match refused {
                QuotaError::Full => {
                    format!("{} responses run in the background (storage.max_background): wait for one to end", inner.places.taken())
                }
                QuotaError::Share { own, free } => {
                    format!("{own} of your responses run in the background, and {free} places are left for others: wait for one to end")
                }
            };
            ApiError::new(Kind::QueueFull, message)
        })?;
        inner.by_id.insert(id.to_owned(), (tenant.to_owned(), live));
        Ok(())
    }

    pub fn get(&self, tenant: &str, id: &str) -> Option<Arc<BackgroundResponse>> {
        self.lock().by_id.get(id).filter(|(owner, _)| owner == tenant).map(|(_, live)| live.clone())
    }

    pub fn remove(&self, id: &str) {
        let mut inner = self.lock();
        if let Some((tenant, _)) = inner.by_id.remove(id) {
            inner.places.give(&tenant, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[actix_web::test]
    async fn a_reader_gets_every_event_from_where_it_begins() {
        let live = BackgroundResponse::new(String::new(), Vec::new());
        for n in 0..5 {
            live.push(Bytes::from(n.to_string()));
        }
        let mut late = live.follow(3).unwrap();
        assert_eq!(late.next().await.unwrap(), ["3"]);
        assert!(live.follow(6).is_err() && live.follow(5).is_ok());
        let (writer, reader) = (live.clone(), async {
            assert_eq!(late.next().await.unwrap(), ["4"]);
            assert_eq!(late.next().await.unwrap(), ["5"]);
            late.next().await
        });
        let write = async {
            tokio::task::yield_now().await;
            writer.push(Bytes::from_static(b"5"));
            writer.close();
        };
        let (end, ()) = futures_util::future::join(reader, write).await;
        assert!(end.is_none());
        assert_eq!(live.follow(5).unwrap().next().await.unwrap(), ["5"]);
    }

    #[test]
    fn a_tenant_leaves_places_for_others() {
        let background = BackgroundResponses::new(4);
        let begin = |tenant: &str, id: &str| background.insert(tenant, id, BackgroundResponse::new(String::new(), Vec::new())).is_ok();
        assert!(begin("ann", "1") && begin("ann", "2") && !begin("ann", "3"));
        assert!(begin("bob", "4") && !begin("bob", "5") && begin("carl", "6") && !begin("dora", "7"));
        background.remove("1");
        assert!(!begin("ann", "8") && begin("dora", "9"));
        let alone = BackgroundResponses::new(2);
        assert!(
            (0..2).all(|id| alone.insert("", &id.to_string(), BackgroundResponse::new(String::new(), Vec::new())).is_ok()),
            "without keys"
        );
    }

    #[actix_web::test]
    async fn the_oldest_events_go_first() {
        let live = BackgroundResponse::new(String::new(), Vec::new());
        for _ in 0..5 {
            live.push(Bytes::from(vec![b'x'; MAX_BYTES / 4]));
        }
        assert_eq!(live.num_bytes(), MAX_BYTES);
        assert_eq!(live.follow(0).err().and_then(|error| error.param).as_deref(), Some("starting_after"));
        assert!(live.follow(1).is_ok());
    }
}
