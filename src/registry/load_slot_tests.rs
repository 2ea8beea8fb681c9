//! Load slots: loads, leases, failures and stops.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::*;

/// A fake model.
#[derive(Default)]
struct Fake {
    dead: AtomicBool,
}

fn unloaded() -> Arc<LoadSlot<Fake>> {
    Arc::new(LoadSlot::new(|fake: &Fake| !fake.dead.load(SeqCst), Arc::default()))
}

fn loaded() -> Arc<LoadSlot<Fake>> {
    let slot = unloaded();
    assert!(matches!(slot.begin(), LoadAction::Load(None)));
    assert!(slot.settle(Ok(Fake::default())).is_none());
    slot
}

#[test]
fn one_request_loads_and_the_others_wait() {
    let slot = unloaded();
    assert_eq!(slot.phase(), LoadPhase::Empty);
    assert!(matches!(slot.begin(), LoadAction::Load(None)));
    assert!(matches!(slot.begin(), LoadAction::Wait) && slot.peek().is_none());
    assert!(matches!(slot.phase(), LoadPhase::Loading(_)));
    let waiter = {
        let slot = slot.clone();
        std::thread::spawn(move || {
            slot.wait(Duration::from_secs(20));
            slot.lease().is_some()
        })
    };
    slot.settle(Ok(Fake::default()));
    assert!(waiter.join().unwrap() && matches!(slot.begin(), LoadAction::Ready(..)));
}

#[test]
fn a_value_in_use_is_not_unloaded() {
    let slot = loaded();
    let (first, second) = (slot.lease().unwrap(), slot.lease().unwrap());
    assert_eq!(slot.unload(false).err(), Some(UnloadError::InUse(2)));
    drop(first);
    assert_eq!(slot.unload(false).err(), Some(UnloadError::InUse(1)));
    drop(second);
    assert!(slot.unload(false).is_ok() && slot.lease().is_none());
    assert_eq!(slot.unload(false).err(), Some(UnloadError::NotLoaded));
    assert!(matches!(slot.begin(), LoadAction::Load(None)));
    assert_eq!(slot.unload(true).err(), Some(UnloadError::Loading));
}

#[test]
fn a_value_that_moves_is_not_loaded_again_where_it_was() {
    let (old, new) = (loaded(), unloaded());
    let lease = old.lease().unwrap();
    new.adopt(&old, |_| Fake::default());
    assert!(matches!(old.begin(), LoadAction::Stopped) && matches!(new.begin(), LoadAction::Ready(..)));
    assert_eq!(old.unload(true).err(), Some(UnloadError::NotLoaded));
    assert_eq!(new.unload(false).err(), Some(UnloadError::InUse(1)), "requests from before count");
    drop(lease);
    assert!(new.unload(false).is_ok());
}

#[test]
fn leases_of_an_earlier_load_do_not_hold_the_next_one() {
    let slot = loaded();
    let old = slot.lease().unwrap();
    assert!(slot.unload(true).is_ok());
    assert!(matches!(slot.begin(), LoadAction::Load(None)));
    slot.settle(Ok(Fake::default()));
    assert!(slot.unload(false).is_ok(), "only the earlier load is in use");
    drop(old);
}

/// Many threads take leases while others unload. The value of a lease is never unloaded.
#[test]
fn leases_and_unloads_race_without_harm() {
    let slot = loaded();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    match slot.begin() {
                        LoadAction::Ready(value, lease) => {
                            assert!(!value.dead.load(SeqCst), "the value was unloaded under its lease");
                            drop((value, lease));
                        }
                        LoadAction::Load(_) => drop(slot.settle(Ok(Fake::default()))),
                        _ => std::thread::yield_now(),
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..2000 {
                if let Ok(value) = slot.unload(false) {
                    value.dead.store(true, SeqCst);
                }
            }
        });
    });
}

#[test]
fn failures_are_remembered_and_want_of_room_is_soon_forgotten() {
    let slot = unloaded();
    assert!(matches!(slot.begin(), LoadAction::Load(None)));
    slot.settle(Err(LoadFault::Failed("bad file".into())));
    assert!(matches!(slot.begin(), LoadAction::Failed(fault) if fault == LoadFault::Failed("bad file".into())));
    assert_eq!(slot.phase(), LoadPhase::Failed);
    assert!(
        LoadFault::NoRoom(String::new()).memory() < Duration::from_secs(1)
            && LoadFault::Failed(String::new()).memory() > Duration::from_secs(5)
    );
}

#[test]
fn a_dead_value_is_replaced() {
    let slot = loaded();
    assert!(slot.died().is_none());
    slot.peek().unwrap().dead.store(true, SeqCst);
    assert!(slot.peek().is_none() && slot.lease().is_none() && slot.died().is_some());
    assert!(matches!(slot.begin(), LoadAction::Load(Some(_))));
}

#[test]
fn the_line_of_those_who_wait_is_bounded() {
    let slot = unloaded();
    let (one, two) = (slot.wait_in_line(2), slot.wait_in_line(2));
    assert!(one.is_some() && two.is_some() && slot.wait_in_line(2).is_none());
    drop(one);
    assert!(slot.wait_in_line(2).is_some() && slot.num_waiting() == 1);
}

#[test]
fn stop_also_ends_a_load_in_progress() {
    assert!(loaded().stop().is_some());
    let slot = unloaded();
    assert!(matches!(slot.begin(), LoadAction::Load(None)) && slot.stop().is_none());
    assert!(slot.settle(Ok(Fake::default())).is_some(), "the loader gets its value back");
    assert!(matches!(slot.begin(), LoadAction::Stopped));
}
