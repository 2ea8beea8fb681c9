//! [`EncoderThread`]: encodes a model's pictures, one after another, beside the engine's thread.
//!
//! A picture waits in a bounded queue, in which clients take turns, and is decoded when its turn comes. One picture of the whole process is
//! decoded at a time, so the pixels of at most one are in memory. The thread has a lower priority than the engine: while pictures are
//! encoded, sequences that generate keep their pace.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;

use super::error::PictureError;
use super::fair_queue::{FairQueue, Refusal};
use super::reader::PictureReader;
use super::row_cache::{PictureKey, RowCache, picture_key};
use super::rules::{EncodedPicture, PictureRules};
use engine::BackendKind;
use images::DecodeLimits;
use metrics::ModelMetrics;
use model::ModelSpec;
use tokenizer::Tokenizer;

/// The most pictures that wait.
const MAX_WAITING: usize = 256;
/// The most memory of rows that are kept [bytes].
const MAX_KEPT: usize = 256 << 20;
/// Added to the priority's number, so that the engine's threads run first.
const NICE: i32 = 5;

/// Held while a picture is decoded and cut.
static DECODING: Mutex<()> = Mutex::new(());

/// A model's picture encoder on a thread of its own. The thread ends when this value is dropped.
pub struct EncoderThread {
    pub rules: Arc<PictureRules>,
    jobs: Arc<FairQueue<Job>>,
    cache: Arc<Mutex<RowCache>>,
    metrics: Arc<ModelMetrics>,
}

/// Where an encoder runs.
#[derive(Clone, Copy, Debug)]
pub struct EncoderPlace {
    /// The language model's device, on which the encoder runs if it can.
    pub device: (BackendKind, u32),
    /// The encoder's own threads on a CPU. 0: one per core.
    pub threads: usize,
    /// The most rows of the language model's steps.
    pub max_batch_tokens: usize,
}

struct Job {
    file: Arc<[u8]>,
    key: PictureKey,
    reply: oneshot::Sender<Result<Arc<EncodedPicture>, PictureError>>,
}

impl EncoderThread {
    /// Opens a mmproj file for a language model and starts the thread.
    ///
    /// # Errors
    /// As [`PictureReader::open`], or no thread can be started.
    pub fn start(path: &Path, language: &ModelSpec, tokenizer: &Tokenizer, place: EncoderPlace, name: &str) -> anyhow::Result<Self> {
        let (mut rules, weights) = PictureRules::open(path, language, tokenizer)?;
        rules.limit_steps(place.max_batch_tokens);
        let (rules, cache) = (Arc::new(rules), Arc::new(Mutex::new(RowCache::new(MAX_KEPT))));
        let metrics = ModelMetrics::for_model(name);
        let jobs = Arc::new(FairQueue::new(MAX_WAITING));
        let queue = jobs.clone();
        let (opened, is_open) = sync_channel(1);
        let worker = (rules.clone(), cache.clone(), metrics.clone());
        let run = move || {
            // Threads of the encoder inherit the priority. Without the right to lower it, they share the processor evenly.
            let _ = rustix::process::nice(NICE);
            let (rules, cache, metrics) = worker;
            match PictureReader::over(rules, weights, place.threads, place.device) {
                Ok(reader) => {
                    let _ = opened.send(Ok(()));
                    Worker { reader, cache, metrics }.run(&queue);
                }
                Err(error) => drop(opened.send(Err(error))),
            }
        };
        std::thread::Builder::new().name("pictures".into()).spawn(run)?;
        is_open.recv()??;
        Ok(Self { rules, jobs, cache, metrics })
    }

    /// The rows of a picture: kept ones, or those that the thread encodes. `tenant` is whose turn it takes. Dropping the future takes the
    /// picture out of the queue.
    ///
    /// # Errors
    /// The picture cannot be decoded, cut or encoded, or too many wait.
    pub async fn rows(&self, file: Arc<[u8]>, salt: u64, tenant: Option<u64>) -> Result<Arc<EncodedPicture>, PictureError> {
        let key = picture_key(&file, salt);
        if let Some(kept) = locked(&self.cache).get(&key) {
            self.metrics.picture_cache_hits_total.inc();
            return Ok(kept);
        }
        let (reply, rows) = oneshot::channel();
        self.metrics.num_pictures_waiting.inc();
        self.jobs.push(tenant.unwrap_or_default(), Job { file, key, reply }).map_err(|refusal| {
            self.metrics.num_pictures_waiting.dec();
            match refusal {
                Refusal::Full => PictureError::QueueFull,
                Refusal::Closed => PictureError::Stopped,
            }
        })?;
        rows.await.unwrap_or(Err(PictureError::Stopped))
    }
}

impl Drop for EncoderThread {
    fn drop(&mut self) {
        self.metrics.num_pictures_waiting.sub(self.jobs.close() as i64);
    }
}

struct Worker {
    reader: PictureReader,
    cache: Arc<Mutex<RowCache>>,
    metrics: Arc<ModelMetrics>,
}

impl Worker {
    /// Encodes what comes until no one can send any more.
    fn run(mut self, queue: &FairQueue<Job>) {
        while let Some(Job { file, key, reply }) = queue.pop() {
            self.metrics.num_pictures_waiting.dec();
            if reply.is_closed() {
                continue;
            }
            // A fault in one picture must not end the thread.
            let result = catch_unwind(AssertUnwindSafe(|| self.rows(&file, key, &|| reply.is_closed())));
            let result = result.unwrap_or_else(|fault| Err(PictureError::Encoder(words(&*fault))));
            // An error means that the request has gone.
            let _ = reply.send(result);
        }
    }

    fn rows(&mut self, file: &[u8], key: PictureKey, is_cancelled: &dyn Fn() -> bool) -> Result<Arc<EncodedPicture>, PictureError> {
        if let Some(kept) = locked(&self.cache).get(&key) {
            self.metrics.picture_cache_hits_total.inc();
            return Ok(kept);
        }
        let start = Instant::now();
        let (id, plan, tiles) = {
            let _turn = DECODING.lock().unwrap_or_else(PoisonError::into_inner);
            let picture = images::decode(file, &DecodeLimits::default())?;
            // The number of a picture in its prompt changes only the text around its rows.
            let plan = self.reader.rules.plan((picture.width, picture.height), 0)?;
            let tiles = plan.prepare(&picture);
            (self.reader.rules.picture_id(&picture), plan, tiles)
        };
        let mut goes_on = || if is_cancelled() { Err(anyhow::anyhow!("the request has gone")) } else { Ok(()) };
        let encoded = self.reader.encode(&id, &plan, &tiles, &mut goes_on);
        let encoded = Arc::new(encoded.map_err(|error| PictureError::Encoder(format!("{error:#}")))?);
        self.metrics.picture_encode_seconds.observe(start.elapsed().as_secs_f64());
        self.metrics.picture_rows_total.inc_by(plan.num_rows() as u64);
        locked(&self.cache).insert(key, encoded.clone());
        Ok(encoded)
    }
}

fn locked(cache: &Mutex<RowCache>) -> MutexGuard<'_, RowCache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The words of a panic.
fn words(fault: &(dyn Any + Send)) -> String {
    let text = fault.downcast_ref::<&str>().copied().or_else(|| fault.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("an internal fault").to_owned()
}
