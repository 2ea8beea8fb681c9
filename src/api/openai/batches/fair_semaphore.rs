//! Places that the batches of all tenants share. The next one goes to the tenant that holds fewest, and of several to the one that has
//! waited longest for its turn. So a tenant with a thousand waiting lines gets what one with a single line gets.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use tokio::sync::oneshot;

pub struct FairSemaphore {
    max: usize,
    /// Places that only tenants take that hold none, so that a tenant whose lines are long keeps nobody waiting.
    reserve: usize,
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    taken: usize,
    /// Counts the places that were given and the lines that were begun.
    clock: u64,
    lines: HashMap<String, TenantQueue>,
}

/// A tenant's line.
#[derive(Default)]
struct TenantQueue {
    held: usize,
    /// When it was last given a place. 0: never.
    served: u64,
    /// When it was begun.
    came: u64,
    waiting: VecDeque<oneshot::Sender<FairPermit>>,
}

/// A place, until dropped.
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
    /// `max`: 0 gives nobody a place. An eighth is kept for tenants that hold none, unless there is one place only.
    pub fn new(max: usize) -> Rc<Self> {
        let reserve = if max > 1 { max.div_ceil(8) } else { 0 };
        Rc::new(Self { max, reserve, inner: RefCell::default() })
    }

    /// Waits for a place. A dropped future leaves the line.
    pub async fn take(self: &Rc<Self>, tenant: &str) -> FairPermit {
        let (sender, receiver) = oneshot::channel();
        self.inner.borrow_mut().line(tenant).waiting.push_back(sender);
        self.serve();
        match receiver.await {
            Ok(place) => place,
            // The line holds the sender until it gives a place.
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

    /// Gives places to those who wait while there are any.
    fn serve(self: &Rc<Self>) {
        while let Some((tenant, sender)) = self.next() {
            // If nobody waits for it any more, the place comes back when it is dropped.
            let _ = sender.send(FairPermit { semaphore: self.clone(), tenant });
        }
    }

    /// Who gets the next place. It is taken already.
    fn next(&self) -> Option<(String, oneshot::Sender<FairPermit>)> {
        let mut inner = self.inner.borrow_mut();
        let Inner { taken, clock, lines } = &mut *inner;
        let free = self.max - *taken;
        // Without keys there are no others for whom a place is kept.
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

    /// Tenants that wait, and the places that they have got.
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

        /// Who has got a place since.
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
        // One of them was given the place, and none has looked.
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
