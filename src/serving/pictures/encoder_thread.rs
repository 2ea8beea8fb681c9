//! [`EncoderThread`]: encodes a model's pictures beside the engine's thread.
//!
//! A picture waits in a bounded queue, in which clients take turns. A thread decodes, cuts and resizes pictures ahead of the encoder. One
//! picture of the whole process is decoded at a time, so the pixels of at most one are in memory, beside those of a few resized ones. Small
//! pictures share a pass of the encoder where that is faster. Both threads have a lower priority than the engine: while pictures are
//! encoded, sequences that generate keep their pace.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;

use super::error::PictureError;
use super::fair_queue::{FairQueue, Refusal};
use super::reader::PictureReader;
use super::row_cache::{PictureKey, RowCache, picture_key};
use super::rules::{EncodedPicture, PictureRules};
use engine::BackendKind;
use images::{DecodeLimits, PicturePlan, Rgb};
use metrics::ModelMetrics;
use model::ModelSpec;
use tokenizer::Tokenizer;

/// The most pictures that wait.
const MAX_WAITING: usize = 256;
/// The most memory of rows that are kept [bytes].
const MAX_KEPT: usize = 256 << 20;
/// Added to the priority's number, so that the engine's threads run first.
const NICE: i32 = 5;

/// The most pictures that are prepared ahead of the encoder.
const MAX_PREPARED: usize = 4;

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
    reply: oneshot::Sender<Reply>,
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
        let (prepared, to_encode) = sync_channel(MAX_PREPARED);
        let preparer = Preparer { rules: rules.clone(), cache: cache.clone(), metrics: metrics.clone() };
        let prepare = move || {
            lower_priority();
            preparer.run(&queue, &prepared);
        };
        let encode = move || {
            // Threads of the encoder inherit the priority.
            lower_priority();
            let (rules, cache, metrics) = worker;
            match PictureReader::over(rules, weights, place.threads, place.device) {
                Ok(reader) => {
                    let _ = opened.send(Ok(()));
                    Worker { reader, cache, metrics }.run(&to_encode);
                }
                Err(error) => drop(opened.send(Err(error))),
            }
        };
        std::thread::Builder::new().name("pictures".into()).spawn(encode)?;
        is_open.recv()??;
        std::thread::Builder::new().name("decode".into()).spawn(prepare)?;
        Ok(Self { rules, jobs, cache, metrics })
    }

    /// The rows of a picture: kept ones, or those that the thread encodes. `tenant` is whose turn it takes. Dropping the future takes the
    /// picture out of the queue.
    ///
    /// # Errors
    /// The picture cannot be decoded, cut or encoded, or too many wait.
    pub async fn rows(&self, file: Arc<[u8]>, salt: u64, tenant: Option<u64>) -> Result<Arc<EncodedPicture>, PictureError> {
        let key = picture_key(&file, salt);
        if let Some(kept) = kept(&self.cache, &self.metrics, &key) {
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

/// Decodes, cuts and resizes pictures, while those before them are encoded.
struct Preparer {
    rules: Arc<PictureRules>,
    cache: Arc<Mutex<RowCache>>,
    metrics: Arc<ModelMetrics>,
}

/// A picture that is cut and resized.
struct Prepared {
    key: PictureKey,
    reply: oneshot::Sender<Reply>,
    since: Instant,
    id: [u8; 32],
    plan: PicturePlan,
    tiles: Vec<Rgb>,
    num_patches: usize,
}

type Reply = Result<Arc<EncodedPicture>, PictureError>;

impl Preparer {
    /// Prepares what comes until no one can send any more, or no one encodes.
    fn run(&self, queue: &FairQueue<Job>, prepared: &SyncSender<Prepared>) {
        while let Some(Job { file, key, reply }) = queue.pop() {
            self.metrics.num_pictures_waiting.dec();
            if reply.is_closed() {
                continue;
            }
            if let Some(kept) = kept(&self.cache, &self.metrics, &key) {
                let _ = reply.send(Ok(kept));
                continue;
            }
            let since = Instant::now();
            // A fault in one picture must not end the thread.
            let result = catch_unwind(AssertUnwindSafe(|| self.prepare(&file)));
            match result.unwrap_or_else(|fault| Err(PictureError::Encoder(words(&*fault)))) {
                Ok((id, plan, tiles)) => {
                    let num_patches = tiles.iter().map(|tile| self.rules.num_patches(tile)).sum();
                    if prepared.send(Prepared { key, reply, since, id, plan, tiles, num_patches }).is_err() {
                        return;
                    }
                }
                // An error means that the request has gone.
                Err(error) => drop(reply.send(Err(error))),
            }
        }
    }

    fn prepare(&self, file: &[u8]) -> Result<([u8; 32], PicturePlan, Vec<Rgb>), PictureError> {
        let _turn = DECODING.lock().unwrap_or_else(PoisonError::into_inner);
        let picture = images::decode(file, &DecodeLimits::default())?;
        // The number of a picture in its prompt changes only the text around its rows.
        let plan = self.rules.plan((picture.width, picture.height), 0)?;
        let tiles = plan.prepare(&picture);
        Ok((self.rules.picture_id(&picture), plan, tiles))
    }
}

struct Worker {
    reader: PictureReader,
    cache: Arc<Mutex<RowCache>>,
    metrics: Arc<ModelMetrics>,
}

impl Worker {
    /// Encodes what comes until no one can send any more.
    fn run(mut self, prepared: &Receiver<Prepared>) {
        let most_patches = self.reader.patches_per_pass();
        // One that did not fit into the pass before.
        let mut next = None;
        while let Some(first) = next.take().or_else(|| prepared.recv().ok()) {
            let mut num_patches = first.num_patches;
            let mut pictures = vec![first];
            while num_patches < most_patches && next.is_none() {
                let Ok(more) = prepared.try_recv() else { break };
                // An equal picture's rows are kept by the next pass.
                let is_known = pictures.iter().any(|picture| picture.key == more.key);
                if is_known || num_patches + more.num_patches > most_patches {
                    next = Some(more);
                } else {
                    num_patches += more.num_patches;
                    pictures.push(more);
                }
            }
            self.encode(pictures);
        }
    }

    /// Encodes pictures together and answers them.
    fn encode(&mut self, pictures: Vec<Prepared>) {
        let mut unknown = Vec::new();
        for picture in pictures.into_iter().filter(|picture| !picture.reply.is_closed()) {
            // The pass before may have had an equal one.
            match kept(&self.cache, &self.metrics, &picture.key) {
                Some(kept) => drop(picture.reply.send(Ok(kept))),
                None => unknown.push(picture),
            }
        }
        let tiles: Vec<&Rgb> = unknown.iter().flat_map(|picture| &picture.tiles).collect();
        let mut goes_on = || match unknown.iter().all(|picture| picture.reply.is_closed()) {
            true => Err(anyhow::anyhow!("the requests have gone")),
            false => Ok(()),
        };
        let encoded = catch_unwind(AssertUnwindSafe(|| self.reader.encode(&tiles, &mut goes_on).map_err(|error| format!("{error:#}"))));
        let mut rows = encoded.unwrap_or_else(|fault| Err(words(&*fault)));
        for Prepared { key, reply, since, id, plan, tiles, .. } in unknown {
            let result = match &mut rows {
                Err(why) => Err(PictureError::Encoder(why.clone())),
                Ok(rows) => {
                    let of_tiles: Vec<_> = rows.drain(..tiles.len()).collect();
                    let encoded = Arc::new(self.reader.encoded(&id, &plan, &of_tiles));
                    self.metrics.picture_encode_seconds.observe(since.elapsed().as_secs_f64());
                    self.metrics.picture_rows_total.inc_by(plan.num_rows() as u64);
                    locked(&self.cache).insert(key, encoded.clone());
                    Ok(encoded)
                }
            };
            // An error means that the request has gone.
            let _ = reply.send(result);
        }
    }
}

/// The rows of a picture, if they are kept.
fn kept(cache: &Mutex<RowCache>, metrics: &ModelMetrics, key: &PictureKey) -> Option<Arc<EncodedPicture>> {
    let kept = locked(cache).get(key)?;
    metrics.picture_cache_hits_total.inc();
    Some(kept)
}

fn locked(cache: &Mutex<RowCache>) -> MutexGuard<'_, RowCache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets the engine's threads run first. Without the right to do so, all share the processor evenly.
fn lower_priority() {
    let _ = rustix::process::nice(NICE);
}

/// The words of a panic.
fn words(fault: &(dyn Any + Send)) -> String {
    let text = fault.downcast_ref::<&str>().copied().or_else(|| fault.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("an internal fault").to_owned()
}
