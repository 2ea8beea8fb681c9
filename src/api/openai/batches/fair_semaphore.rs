//! A fair semaphore for the batches of all tenants. The next permit goes to the waiting tenant that holds the fewest. Among equals, it goes
//! to the one whose last permit is the oldest. So a tenant with a thousand waiting lines gets as much as one with a single line.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use tokio::sync::oneshot;

pub struct FairSemaphore {
    max: usize,
    /// Permits that only tenants without one can take, so that a tenant with slow lines blocks no other.
    reserve: usize,
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    taken: usize,
    /// Counts the permits that were given and the queues that were created.
    clock: u64,
    lines: HashMap<String, TenantQueue>,
}

/// The queue of a tenant.
#[derive(Default)]
struct TenantQueue {
    held: usize,
    /// When the tenant last got a permit, by the clock. 0 if never.
    served: u64,
    /// When the queue was created, by the clock.
    came: u64,
    waiting: VecDeque<oneshot::Sender<FairPermit>>,
}

/// A permit, returned when dropped.
pub struct FairPermit {
    semaphore: Rc<FairSemaphore>,
    tenant: String,
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        self.semaphore.give_back(&self.tenant);
    }
}

impl Inner {
    fn line(&mut self, tenant: &str) -> &mut TenantQueue {
        self.clock += 1;
        self.lines.entry(tenant.to_owned()).or_insert_with(|| TenantQueue { came: self.clock, ..TenantQueue::default() })
    }
}

impl FairSemaphore {
    /// Creates a semaphore with `max` permits. An eighth is reserved for tenants that hold none, unless `max` is 1. With 0, nobody gets a
    /// permit.
    pub fn new(max: usize) -> Rc<Self> {
        let reserve = if max > 1 { max.div_ceil(8) } else { 0 };
        Rc::new(Self { max, reserve, inner: RefCell::default() })
    }

    /// Waits for a permit. Dropping the future leaves the queue.
    pub async fn take(self: &Rc<Self>, tenant: &str) -> FairPermit {
        let (sender, receiver) = oneshot::channel();
        self.inner.borrow_mut().line(tenant).waiting.push_back(sender);
        self.serve();
        match receiver.await {
            Ok(place) => place,
            // The queue keeps the sender until it gives a permit, so this does not happen.
            Err(_) => std::future::pending().await,
        }
    }

    fn give_back(self: &Rc<Self>, tenant: &str) {
        let mut inner = self.inner.borrow_mut();
        inner.taken -= 1;
        if let Some(line) = inner.lines.get_mut(tenant) {
            line.held -= 1;
        }
        drop(inner);
        self.serve();
    }

    /// Gives permits to waiting tenants until there are none left.
    fn serve(self: &Rc<Self>) {
        while let Some((tenant, sender)) = self.next() {
            // If the receiver is gone, dropping the permit returns it.
            let _ = sender.send(FairPermit { semaphore: self.clone(), tenant });
        }
    }

    /// Takes the next permit, and returns the tenant and the receiver that it is for.
    fn next(&self) -> Option<(String, oneshot::Sender<FairPermit>)> {
        let mut inner = self.inner.borrow_mut();
        let Inner { taken, clock, lines } = &mut *inner;
        let free = self.max - *taken;
        // Without keys, all requests have the same tenant, so nothing is reserved.
        let may = |tenant: &str, line: &TenantQueue| free > 0 && (line.held == 0 || tenant.is_empty() || free > self.reserve);
        loop {
            lines.retain(|_, line| line.held > 0 || !line.waiting.is_empty());
            let waiting = lines.iter_mut().filter(|(tenant, line)| !line.waiting.is_empty() && may(tenant, line));
            let (tenant, line) = waiting.min_by_key(|(_, line)| (line.held, line.served, line.came))?;
            if let Some(sender) = line.waiting.pop_front().filter(|sender| !sender.is_closed()) {
                (*taken, *clock) = (*taken + 1, *clock + 1);
                (line.held, line.served) = (line.held + 1, *clock);
                return Some((tenant.clone(), sender));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::future::LocalBoxFuture;

    use super::*;

    /// Waiting tenants, and the permits that they have got.
    struct Waiters {
        waiting: Vec<(&'static str, LocalBoxFuture<'static, FairPermit>)>,
        held: Vec<(&'static str, FairPermit)>,
    }

    impl Waiters {
        fn new(semaphore: &Rc<FairSemaphore>, tenants: &[&'static str]) -> Self {
            let wait = |tenant: &'static str| -> LocalBoxFuture<'static, FairPermit> {
                let semaphore = semaphore.clone();
                Box::pin(async move { semaphore.take(tenant).await })
            };
            Self { waiting: tenants.iter().map(|tenant| (*tenant, wait(tenant))).collect(), held: Vec::new() }
        }

        /// The tenants that have got a permit since the last call.
        fn served(&mut self) -> String {
            let mut served = String::new();
            for (tenant, mut waiting) in std::mem::take(&mut self.waiting) {
                match (&mut waiting).now_or_never() {
                    Some(place) => {
                        served.push_str(tenant);
                        self.held.push((tenant, place));
                    }
                    None => self.waiting.push((tenant, waiting)),
                }
            }
            served
        }
    }

    #[test]
    fn a_tenant_with_many_lines_gets_what_one_with_few_gets() {
        let semaphore = FairSemaphore::new(4);
        let mut many = Waiters::new(&semaphore, &["a"; 100]);
        assert_eq!(many.served(), "aaa", "one place is kept for tenants that hold none");
        let mut few = Waiters::new(&semaphore, &["b"; 3]);
        assert_eq!(few.served(), "b", "nobody waits behind the hundred");
        many.held.pop();
        assert_eq!((few.served().as_str(), many.served().as_str()), ("", ""), "the place is kept for a third tenant");
        many.held.pop();
        assert_eq!((few.served().as_str(), many.served().as_str()), ("", "a"), "of two that hold one, `a` got it before");
        few.held.clear();
        assert_eq!((few.served().as_str(), many.served().as_str()), ("b", ""));
        let mut third = Waiters::new(&semaphore, &["c"]);
        assert_eq!(third.served(), "c");
    }

    #[test]
    fn tenants_take_turns_at_a_single_place() {
        let semaphore = FairSemaphore::new(1);
        let mut all = Waiters::new(&semaphore, &["a", "a", "a", "b", "b", "c"]);
        let mut order = String::new();
        for _ in 0..6 {
            order += &all.served();
            all.held.clear();
        }
        assert_eq!(order, "abcaba");
    }

    #[test]
    fn a_place_is_not_lost_with_one_who_waited_for_it_and_none_gives_none() {
        let semaphore = FairSemaphore::new(1);
        let mut first = Waiters::new(&semaphore, &["a"]);
        assert_eq!(first.served(), "a");
        let (mut gone, mut last) = (Waiters::new(&semaphore, &["b"; 50]), Waiters::new(&semaphore, &["c"]));
        assert_eq!((gone.served(), last.served()), (String::new(), String::new()));
        first.held.clear();
        // One of the dropped waiters had been given the permit but had not polled.
        drop(gone);
        assert_eq!(last.served(), "c");
        last.held.clear();
        assert_eq!(semaphore.inner.borrow().taken, 0);
        let mut alone = Waiters::new(&FairSemaphore::new(2), &[""; 3]);
        alone.served();
        assert_eq!((alone.held.len(), alone.waiting.len()), (2, 1), "without keys, all places are taken");
        assert_eq!(Waiters::new(&FairSemaphore::new(0), &["a"]).served(), "");
    }
}
