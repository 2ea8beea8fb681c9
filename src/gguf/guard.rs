//! Survives truncation of a mapped file: bytes that the file has lost read as zeros, and the process goes on.
//!
//! The system raises SIGBUS in a thread that touches a mapped page which the file no longer has, or which the disk cannot read. The handler
//! here looks the address up in the list of watched ranges. If a range contains the address, the handler maps pages of zeros over the rest
//! of the range, marks the range as damaged and returns, so that the thread continues with zeros. Code that has used the bytes asks
//! [`Guard::is_damaged`] before it trusts a result. A SIGBUS from any other address is passed to the handler that was installed before.
//!
//! A signal handler may interrupt any other code. So this one only reads atomics and calls `mmap`: it takes no lock and does not allocate.
//! For the same reason the list of ranges only grows, and the entry of a range that is no longer watched is reused.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use libc::{c_int, c_void, siginfo_t};

/// An entry of the list of watched ranges.
struct Range {
    start: AtomicUsize,
    /// In bytes. 0 if the entry is free.
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
        Self { start: AtomicUsize::new(0), len: AtomicUsize::new(0), damaged: AtomicBool::new(false), next: OnceLock::new() }
    }

    fn all() -> impl Iterator<Item = &'static Self> {
        std::iter::successors(Some(&RANGES), |range| range.next.get().copied())
    }

    /// Returns a free entry. Appends one to the list if there is none.
    fn free() -> &'static Self {
        let mut last = &RANGES;
        for range in Self::all() {
            if range.len.load(Ordering::Acquire) == 0 {
                return range;
            }
            last = range;
        }
        last.next.get_or_init(|| Box::leak(Box::new(Self::new())))
    }

    /// The end of the range. None if `address` lies outside.
    fn end_behind(&self, address: usize) -> Option<usize> {
        let (len, start) = (self.len.load(Ordering::Acquire), self.start.load(Ordering::Acquire));
        (address >= start && address - start < len).then(|| start + len)
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
        range.damaged.store(false, Ordering::Release);
        range.start.store(bytes.as_ptr() as usize, Ordering::Release);
        range.len.store(bytes.len(), Ordering::Release);
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
        self.0.len.store(0, Ordering::Release);
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
