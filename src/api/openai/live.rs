//! Responses that are made in the background: their state, and their events for whoever reads them, now or later.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::timeout;

use super::kept::{ENTRY, Item};
use super::shares::{Refused, Shares};
use http::error::{ApiError, Kind};
use http::stream::Frames;

/// The largest size of a response's events. The oldest go first. In bytes.
const MAX_BYTES: usize = 4 << 20;
/// How long a client that cancels a response waits for its end.
const PATIENCE: Duration = Duration::from_secs(10);

/// A response in the background. It stays with the stored response after its end.
pub struct Live {
    /// The new items of the input.
    pub input: Vec<Item>,
    events: Mutex<Events>,
    /// The number of events so far, and whether there will be no more.
    progress: watch::Sender<(u64, bool)>,
    cancelled: watch::Sender<bool>,
}

struct Events {
    /// The response as it is now, as JSON.
    response: String,
    frames: VecDeque<Bytes>,
    /// The number of the first frame.
    first: u64,
    num_bytes: usize,
}

impl Live {
    /// `response`: as it is while it waits.
    pub fn new(response: String, input: Vec<Item>) -> Arc<Self> {
        let events = Events { response, frames: VecDeque::new(), first: 0, num_bytes: 0 };
        let (progress, cancelled) = (watch::Sender::new((0, false)), watch::Sender::new(false));
        Arc::new(Self { input, events: Mutex::new(events), progress, cancelled })
    }

    fn lock(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The size in memory. It grows until the response has ended.
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

    /// No more events follow.
    pub fn close(&self) {
        self.progress.send_modify(|(_, has_ended)| *has_ended = true);
    }

    fn cancel(&self) {
        self.cancelled.send_replace(true);
    }

    pub async fn when_cancelled(&self) {
        // The wait fails only if the sender is dropped, and whoever calls this holds it.
        let _ = self.cancelled.subscribe().wait_for(|is_cancelled| *is_cancelled).await;
    }

    /// Cancels the response, and completes once no more events follow.
    pub async fn end_now(&self) -> Result<(), ApiError> {
        self.cancel();
        let mut progress = self.progress.subscribe();
        let ended = timeout(PATIENCE, progress.wait_for(|(_, has_ended)| *has_ended)).await;
        let late = |_| ApiError::new(Kind::Internal, format!("the response did not end within {} s", PATIENCE.as_secs()));
        ended.map(drop).map_err(late)
    }

    /// The frames from the event `from` on.
    ///
    /// # Errors
    /// They are not kept any more.
    pub fn follow(self: &Arc<Self>, from: u64) -> Result<Follower, ApiError> {
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
        Ok(Follower { live: self.clone(), next: from, progress: self.progress.subscribe() })
    }
}

/// Someone who reads a response's events.
pub struct Follower {
    live: Arc<Live>,
    next: u64,
    progress: watch::Receiver<(u64, bool)>,
}

impl Frames for Follower {
    async fn next(&mut self) -> Option<Bytes> {
        let (count, _) = *self.progress.wait_for(|(count, has_ended)| *count > self.next || *has_ended).await.ok()?;
        let events = self.live.lock();
        if self.next >= count || self.next < events.first {
            // The end, or a reader so slow that what it would read next is gone: its stream is cut, so that it does not look whole.
            return None;
        }
        let frame = events.frames.get((self.next - events.first) as usize).cloned();
        self.next += 1;
        frame
    }
}

/// The responses in the background that have not ended.
pub struct Lives {
    inner: Mutex<Running>,
}

struct Running {
    places: Shares,
    by_id: HashMap<String, (String, Arc<Live>)>,
}

impl Lives {
    pub fn new(max: usize) -> Self {
        Self { inner: Mutex::new(Running { places: Shares::new(max as u64), by_id: HashMap::new() }) }
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a response, if there is a place for its tenant.
    pub fn insert(&self, tenant: &str, id: &str, live: Arc<Live>) -> Result<(), ApiError> {
        let mut inner = self.lock();
        inner.places.take(tenant, 1).map_err(|refused| {
            let message = match refused {
                Refused::Full => {
                    format!("{} responses run in the background (storage.max_background): wait for one to end", inner.places.taken())
                }
                Refused::Share { own, free } => {
                    format!("{own} of your responses run in the background, and {free} places are left for others: wait for one to end")
                }
            };
            ApiError::new(Kind::QueueFull, message)
        })?;
        inner.by_id.insert(id.to_owned(), (tenant.to_owned(), live));
        Ok(())
    }

    pub fn get(&self, tenant: &str, id: &str) -> Option<Arc<Live>> {
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
        let live = Live::new(String::new(), Vec::new());
        for n in 0..5 {
            live.push(Bytes::from(n.to_string()));
        }
        let mut late = live.follow(3).unwrap();
        assert_eq!(late.next().await.unwrap(), "3");
        assert!(live.follow(6).is_err() && live.follow(5).is_ok());
        let (writer, reader) = (live.clone(), async {
            assert_eq!(late.next().await.unwrap(), "4");
            assert_eq!(late.next().await.unwrap(), "5");
            late.next().await
        });
        let write = async {
            tokio::task::yield_now().await;
            writer.push(Bytes::from_static(b"5"));
            writer.close();
        };
        let (end, ()) = futures_util::future::join(reader, write).await;
        assert!(end.is_none());
        assert_eq!(live.follow(5).unwrap().next().await.unwrap(), "5");
    }

    #[test]
    fn a_tenant_leaves_places_for_others() {
        let lives = Lives::new(4);
        let begin = |tenant: &str, id: &str| lives.insert(tenant, id, Live::new(String::new(), Vec::new())).is_ok();
        assert!(begin("ann", "1") && begin("ann", "2") && !begin("ann", "3"));
        assert!(begin("bob", "4") && !begin("bob", "5") && begin("carl", "6") && !begin("dora", "7"));
        lives.remove("1");
        assert!(!begin("ann", "8") && begin("dora", "9"));
        let alone = Lives::new(2);
        assert!((0..2).all(|id| alone.insert("", &id.to_string(), Live::new(String::new(), Vec::new())).is_ok()), "without keys");
    }

    #[actix_web::test]
    async fn the_oldest_events_go_first() {
        let live = Live::new(String::new(), Vec::new());
        for _ in 0..5 {
            live.push(Bytes::from(vec![b'x'; MAX_BYTES / 4]));
        }
        assert_eq!(live.num_bytes(), MAX_BYTES);
        assert_eq!(live.follow(0).err().and_then(|error| error.param).as_deref(), Some("starting_after"));
        assert!(live.follow(1).is_ok());
    }
}
