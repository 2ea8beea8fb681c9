//! Survives truncation of a mapped file: bytes that the file has lost read as zeros, and the process goes on.
//!
//! The system raises SIGBUS in a thread that touches a mapped page which the file no longer has, or which the disk cannot read. The handler
//! here looks the address up in the list of watched ranges. If a range contains the address, the handler maps pages of zeros over the rest
//! of the range, marks the range as damaged and returns, so that the thread continues with zeros. Code that has used the bytes asks
//! [`Guard::is_damaged`] before it trusts a result. A SIGBUS from any other address is passed to the handler that was installed before.
//!
//! A signal handler may interrupt any other code. So this one only reads atomics and calls `mmap`: it takes no lock and does not allocate.
//! For the same reason the list of ranges only grows, and the entry of a range that is no longer watched is reused. A version per entry
//! makes its publication atomic as a whole: the handler never sees the start of one range with the length of another.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

use libc::{c_int, c_void, siginfo_t};

/// An entry of the list of watched ranges.
struct Range {
    /// Odd while the entry holds a range, even while it is free. Grows by one with each change.
    version: AtomicUsize,
    start: AtomicUsize,
    /// In bytes.
    len: AtomicUsize,
    damaged: AtomicBool,
    next: OnceLock<&'static Range>,
}

/// The head of the list.
static RANGES: Range = Range::new();
/// Held while an entry is taken.
static TAKING: Mutex<()> = Mutex::new(());
/// The handler that was installed before this one.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

impl Range {
    const fn new() -> Self {
        Self {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            damaged: AtomicBool::new(false),
            next: OnceLock::new(),
        }
    }

    fn all() -> impl Iterator<Item = &'static Self> {
        std::iter::successors(Some(&RANGES), |range| range.next.get().copied())
    }

    /// Returns a free entry. Appends one to the list if there is none.
    fn free() -> &'static Self {
        let mut last = &RANGES;
        for range in Self::all() {
            // acquires the change that freed the entry
            if range.version.load(Ordering::Acquire).is_multiple_of(2) {
                return range;
            }
            last = range;
        }
        last.next.get_or_init(|| Box::leak(Box::new(Self::new())))
    }

    /// Publishes a range in a free entry. No other thread may publish in it at the same time.
    fn publish(&self, start: usize, len: usize) {
        let version = self.version.load(Ordering::Relaxed);
        // A reader that sees one of the numbers below also sees that the entry was freed, in its second look at the version.
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.damaged.store(false, Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Release);
    }

    /// Frees a published entry.
    fn release(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The end of the range. None if `address` lies outside, or if the entry changed meanwhile: then the range that it held before is no
    /// longer watched, and no thread can know the range that it holds now.
    fn end_behind(&self, address: usize) -> Option<usize> {
        let version = self.version.load(Ordering::Acquire);
        let (start, len) = (self.start.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = !version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        (is_whole && address >= start && address - start < len).then(|| start + len)
    }
}

/// Watches a range of mapped memory until it is dropped, which must happen before the range is unmapped.
pub struct Guard(&'static Range);

impl Guard {
    /// Starts watching mapped bytes.
    ///
    /// # Errors
    /// If the system refuses to install the handler.
    pub fn watch(bytes: &[u8]) -> io::Result<Self> {
        let taking = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
        install()?;
        let range = Range::free();
        range.publish(bytes.as_ptr() as usize, bytes.len());
        drop(taking);
        Ok(Self(range))
    }

    /// Whether some bytes read as zeros because the file no longer had them.
    pub fn is_damaged(&self) -> bool {
        self.0.damaged.load(Ordering::Acquire)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Installs the handler on the first call. The caller holds [`TAKING`].
#[allow(unsafe_code, reason = "only `sigaction` installs a handler")]
fn install() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // SAFETY: `sigaction` is plain data, for which zeros are valid: no flags, an empty mask.
    let (mut before, mut ours): (libc::sigaction, libc::sigaction) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    ours.sa_sigaction = on_bus_error as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: reads the current handler; `before` is valid for writing.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Must be set before the handler can run.
    BEFORE.get_or_init(|| before);
    // SAFETY: the handler has the signature that SA_SIGINFO requires, and only does what is safe in a signal handler.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[allow(unsafe_code, reason = "a handler gets its address through a pointer")]
extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the system passes a valid `info` to a handler with SA_SIGINFO, and for SIGBUS `info` holds the address.
    let address = unsafe { (*info).si_addr() } as usize;
    for range in Range::all() {
        if let Some(end) = range.end_behind(address) {
            range.damaged.store(true, Ordering::Release);
            if put_zeros(address, end) {
                return;
            }
        }
    }
    pass_on(signal, info, context);
}

/// Maps pages of zeros over the range from the page of `address` to `end`. Both lie in one mapping.
#[allow(unsafe_code, reason = "only `mmap` replaces pages")]
fn put_zeros(address: usize, end: usize) -> bool {
    // SAFETY: reads a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as usize;
    let start = address / page * page;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the pages belong to a watched mapping, so the mapping still exists and only its owner uses them. They stay readable. Only the
    // bytes change, as they may in any file map (see `map.rs`).
    let got = unsafe { libc::mmap(start as *mut c_void, end - start, libc::PROT_READ, flags, -1, 0) };
    got != libc::MAP_FAILED
}

/// Calls the handler that was installed before. Without one, the instruction runs again and the signal ends the process, as it would have
/// without the guard.
#[allow(unsafe_code, reason = "a handler is called through its address")]
fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let before = BEFORE.get().filter(|before| ![libc::SIG_DFL, libc::SIG_IGN].contains(&before.sa_sigaction));
    match before {
        Some(before) if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: a handler that was installed with SA_SIGINFO has this signature.
            let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = unsafe { std::mem::transmute(before.sa_sigaction) };
            handler(signal, info, context);
        }
        Some(before) => {
            // SAFETY: a handler that was installed without SA_SIGINFO has this signature.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(before.sa_sigaction) };
            handler(signal);
        }
        None => {
            // SAFETY: restores the default action, which is safe in a handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// A reader that runs the handler's search must find each address in its own range or in none, whatever the entry holds meanwhile.
    #[test]
    fn an_entry_that_is_reused_never_mixes_two_ranges() {
        let rounds = if cfg!(miri) { 300 } else { 300_000 };
        // the short range starts where the start of one and the length of the other would reach
        let (long, short) = ((1 << 20, 1 << 16), (4 << 20, 1 << 8));
        let (range, stop) = (Range::new(), AtomicBool::new(false));
        let look = |address: usize, end: usize| match range.end_behind(address) {
            None => false,
            Some(found) => {
                assert_eq!(found, end, "the range of {address}");
                true
            }
        };
        let read = || {
            let mut seen = [false; 2];
            while !stop.load(Ordering::Relaxed) {
                seen[0] |= look(long.0 + 1, long.0 + long.1);
                seen[1] |= look(short.0 + 1, short.0 + short.1);
                assert_eq!(range.end_behind(short.0 + short.1), None, "behind the short range");
            }
            seen
        };
        let seen = thread::scope(|scope| {
            let readers = [scope.spawn(read), scope.spawn(read)];
            for round in 0..rounds {
                let (start, len) = if round % 2 == 0 { long } else { short };
                range.publish(start, len);
                if round % 16 < 2 {
                    thread::yield_now();
                }
                range.release();
            }
            stop.store(true, Ordering::Relaxed);
            readers.map(|reader| reader.join().expect("every range is whole"))
        });
        assert!(cfg!(miri) || seen.iter().any(|seen| seen[0] || seen[1]), "the readers ran beside the changes");
        assert_eq!(range.end_behind(long.0), None, "a free entry holds nothing");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri knows no signal handlers")]
    fn an_empty_range_keeps_its_entry() {
        let bytes = [0; 8];
        let (empty, other) = (Guard::watch(&[]).unwrap(), Guard::watch(&bytes).unwrap());
        assert!(!std::ptr::eq(empty.0, other.0), "the entry of an empty range is not free");
        drop(empty);
        assert!(other.0.end_behind(bytes.as_ptr() as usize).is_some(), "the other range is still watched");
    }

    #[test]
    fn a_range_ends_where_its_length_says() {
        let range = Range::new();
        assert_eq!(range.end_behind(0), None);
        range.publish(4096, 100);
        assert_eq!([4095, 4096, 4195, 4196].map(|address| range.end_behind(address)), [None, Some(4196), Some(4196), None]);
        range.release();
        assert_eq!(range.end_behind(4096), None);
    }
}
