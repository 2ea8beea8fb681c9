//! Which model gets the device, and for how long.

use std::sync::mpsc;
use std::thread;

use super::*;

fn slicer() -> Arc<TimeSlicer> {
    Arc::default()
}

fn busy(slicer: &Arc<TimeSlicer>, share: f64) -> TimeSliceClient {
    let mut client = TimeSliceClient::join(slicer, share);
    client.set_busy(true);
    client
}

fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[test]
fn a_model_alone_takes_no_time_slices() {
    let slicer = slicer();
    let mut one = busy(&slicer, 1.0);
    let mut other = TimeSliceClient::join(&slicer, 1.0);
    assert!(!one.is_contended());
    other.set_busy(true);
    assert!(one.is_contended() && other.is_contended());
    other.set_busy(false);
    assert!(!one.is_contended());
    one.set_busy(false);
    other.set_busy(true);
    assert!(one.is_contended(), "another model works");
    drop(other);
    assert!(!one.is_contended());
}

/// Runs two models for a while, whose steps take `steps`. Returns how long each had the device [ms], and the longest wait of the first.
fn run(shares: [f64; 2], steps: [u64; 2]) -> ([f64; 2], Duration) {
    let (slicer, stop) = (slicer(), Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let clients: Vec<TimeSliceClient> = shares.iter().map(|&share| busy(&slicer, share)).collect();
    let threads: Vec<_> = clients
        .into_iter()
        .zip(steps)
        .map(|(client, step)| {
            let stop = stop.clone();
            thread::spawn(move || {
                let (mut used, mut longest) = (0.0, Duration::ZERO);
                while !stop.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    let slice = client.wait(|| ()).expect("a slice");
                    longest = longest.max(start.elapsed());
                    thread::sleep(Duration::from_millis(step));
                    used += slice.elapsed().as_secs_f64() * 1e3;
                }
                (used, longest)
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(1200));
    stop.store(true, Ordering::Relaxed);
    let mut results = threads.into_iter().map(|thread| thread.join().unwrap());
    let (first, second) = (results.next().unwrap(), results.next().unwrap());
    ([first.0, second.0], first.1)
}

#[test]
#[cfg_attr(miri, ignore = "measures time")]
fn time_is_shared_in_proportion_whatever_the_steps_take() {
    let ([small, large], longest) = run([1.0, 1.0], [2, 20]);
    assert!((0.7..1.4).contains(&(small / large)), "{small} and {large} ms");
    assert!(longest < Duration::from_millis(300), "{longest:?}: the small model waits for one step of the large one");
    let ([double, single], _) = run([2.0, 1.0], [5, 5]);
    assert!((1.5..2.6).contains(&(double / single)), "{double} and {single} ms");
}

#[test]
fn a_newcomer_has_neither_a_claim_nor_a_debt_from_the_past() {
    let slicer = slicer();
    let one = busy(&slicer, 1.0);
    let mut other = busy(&slicer, 1.0);
    other.set_busy(false);
    let busy_time = Duration::from_millis(30);
    let slice = one.wait(|| ()).unwrap();
    spin(busy_time);
    drop(slice);
    other.set_busy(true);
    let state = slicer.lock();
    let debts: Vec<f64> = state.models.values().map(|entry| entry.debt).collect();
    assert_eq!(debts[0], debts[1]);
    assert_eq!(state.may_go(other.id, Instant::now()), Ok(()), "among equals, the one that had no slice yet");
}

#[test]
fn a_time_slice_ends_with_its_holder_and_a_model_that_is_gone_delays_no_other() {
    let slicer = slicer();
    let (dies, waits) = (busy(&slicer, 1.0), busy(&slicer, 1.0));
    let panicked = thread::spawn(move || {
        let _slice = dies.wait(|| ()).unwrap();
        panic!("a bug in the engine");
    });
    assert!(panicked.join().is_err());
    drop(waits.wait(|| ()).unwrap());
    // A time slice may outlive its model. The others do not wait for it.
    let gone = busy(&slicer, 1.0);
    let slice = gone.wait(|| ()).unwrap();
    drop(gone);
    drop(waits.wait(|| ()).unwrap());
    drop(slice);
}

#[test]
fn a_waiting_model_shows_that_it_is_alive() {
    let slicer = slicer();
    let (holds, waits) = (busy(&slicer, 1.0), busy(&slicer, 1.0));
    let slice = holds.wait(|| ()).unwrap();
    let (sender, ticks) = mpsc::channel();
    let waiter = thread::spawn(move || drop(waits.wait(|| sender.send(()).unwrap_or(()))));
    (0..3).for_each(|_| ticks.recv().unwrap());
    drop(slice);
    waiter.join().unwrap();
}

#[test]
fn steps_become_as_long_as_they_should_be() {
    let mut steps = StepRowLimit::default();
    for (micros_per_row, rows) in [(30, 666), (1000, 32), (100, 200)] {
        for _ in 0..50 {
            let max = steps.max_rows(8);
            steps.learn((max, max), 8, Duration::from_micros(micros_per_row * (max as u64 - 8)));
        }
        let got = steps.max_rows(0);
        assert!((rows * 9 / 10..=rows * 11 / 10 + 1).contains(&got), "{got} rows of {micros_per_row} µs");
    }
    let before = steps.max_rows(0);
    steps.learn((10, before + 8), 8, Duration::from_secs(1));
    assert_eq!(steps.max_rows(0), before, "a step that the bound has not cut");
}

#[test]
fn no_one_waits_for_a_model_that_hangs_with_its_slice() {
    let slicer = slicer();
    let (hangs, waits) = (busy(&slicer, 1.0), busy(&slicer, 1.0));
    let slice = hangs.wait(|| ()).unwrap();
    let waiter = thread::spawn(move || (waits.wait(|| ()).is_none(), waits.is_contended()));
    thread::sleep(Duration::from_millis(20));
    slicer.end();
    let start = Instant::now();
    assert_eq!(waiter.join().unwrap(), (true, false));
    assert!(start.elapsed() < PATIENCE / 3);
    drop((slice, hangs));
}
