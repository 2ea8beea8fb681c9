//! Who gets the device, and for how long.

use std::sync::mpsc;
use std::thread;

use super::*;

fn turns() -> Arc<Turns> {
    Arc::default()
}

fn busy(turns: &Arc<Turns>, share: f64) -> Player {
    let mut player = Player::join(turns, share);
    player.set_busy(true);
    player
}

fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[test]
fn a_model_alone_takes_no_turns() {
    let turns = turns();
    let mut one = busy(&turns, 1.0);
    let mut other = Player::join(&turns, 1.0);
    assert!(!one.is_contended());
    other.set_busy(true);
    assert!(one.is_contended() && other.is_contended());
    other.set_busy(false);
    assert!(!one.is_contended());
    one.set_busy(false);
    other.set_busy(true);
    assert!(one.is_contended(), "somebody else works");
    drop(other);
    assert!(!one.is_contended());
}

/// Runs two models for a while whose steps take so long. Returns how long each had the device, in ms, and the longest wait of the first.
fn run(shares: [f64; 2], steps: [u64; 2]) -> ([f64; 2], Duration) {
    let (turns, stop) = (turns(), Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let players: Vec<Player> = shares.iter().map(|&share| busy(&turns, share)).collect();
    let threads: Vec<_> = players
        .into_iter()
        .zip(steps)
        .map(|(player, step)| {
            let stop = stop.clone();
            thread::spawn(move || {
                let (mut used, mut longest) = (0.0, Duration::ZERO);
                while !stop.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    let turn = player.wait(|| ()).expect("a turn");
                    longest = longest.max(start.elapsed());
                    thread::sleep(Duration::from_millis(step));
                    used += turn.elapsed().as_secs_f64() * 1e3;
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
fn time_is_shared_in_proportion_whatever_the_steps_take() {
    let ([small, large], longest) = run([1.0, 1.0], [2, 20]);
    assert!((0.7..1.4).contains(&(small / large)), "{small} and {large} ms");
    assert!(longest < Duration::from_millis(300), "{longest:?}: the small model waits for one step of the large one");
    let ([double, single], _) = run([2.0, 1.0], [5, 5]);
    assert!((1.5..2.6).contains(&(double / single)), "{double} and {single} ms");
}

#[test]
fn whoever_comes_is_neither_owed_the_past_nor_behind() {
    let turns = turns();
    let one = busy(&turns, 1.0);
    let mut other = busy(&turns, 1.0);
    other.set_busy(false);
    let busy_time = Duration::from_millis(30);
    let turn = one.wait(|| ()).unwrap();
    spin(busy_time);
    drop(turn);
    other.set_busy(true);
    let state = turns.lock();
    let debts: Vec<f64> = state.models.values().map(|entry| entry.debt).collect();
    assert_eq!(debts[0], debts[1]);
    assert_eq!(state.may_go(other.id, Instant::now()), Ok(()), "among equals, the one that had no turn yet");
}

#[test]
fn a_turn_ends_with_its_holder_and_a_model_that_is_gone_holds_nobody_up() {
    let turns = turns();
    let (dies, waits) = (busy(&turns, 1.0), busy(&turns, 1.0));
    let panicked = thread::spawn(move || {
        let _turn = dies.wait(|| ()).unwrap();
        panic!("a bug in the engine");
    });
    assert!(panicked.join().is_err());
    drop(waits.wait(|| ()).unwrap());
    // A turn outlives its model: nobody waits for it.
    let gone = busy(&turns, 1.0);
    let turn = gone.wait(|| ()).unwrap();
    drop(gone);
    drop(waits.wait(|| ()).unwrap());
    drop(turn);
}

#[test]
fn whoever_waits_shows_that_it_is_alive() {
    let turns = turns();
    let (holds, waits) = (busy(&turns, 1.0), busy(&turns, 1.0));
    let turn = holds.wait(|| ()).unwrap();
    let (sender, ticks) = mpsc::channel();
    let waiter = thread::spawn(move || drop(waits.wait(|| sender.send(()).unwrap_or(()))));
    (0..3).for_each(|_| ticks.recv().unwrap());
    drop(turn);
    waiter.join().unwrap();
}

#[test]
fn steps_become_as_long_as_they_should_be() {
    let mut steps = ShortSteps::default();
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
