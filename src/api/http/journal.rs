//! The journal of a request. Everything that works for the request holds it. When the last holder drops it, the request's line is written
//! to the log and its spans are sent, so a stream's line is written when the stream ends and includes its cost.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use actix_web::dev::ServiceRequest;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use actix_web::{HttpMessage, HttpRequest};
use tokio::time::sleep_until;

use super::deadline::Deadline;
use super::error::{ApiError, quoted};
use super::ignored::Ignored;
use super::request_record::{BodyEnd, Refusal, RequestRecord};
use super::tenant::Tenant;
use super::{access_log, metrics, spans};
use keys::InFlight;
use serving::{ActiveAdapter, Ledger};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Names the request's fields that were left out.
const IGNORED_FIELDS: HeaderName = HeaderName::from_static("penstock-ignored-fields");
/// The longest request id or traceparent that is accepted from a client [bytes].
const MAX_HEADER: usize = 128;

pub struct Journal {
    record: RefCell<RequestRecord>,
    deadline: Cell<Deadline>,
    is_overdue: Cell<bool>,
    /// Counts the request against the limits of its key, until the response's body or the remaining work takes this over.
    in_flight: Cell<Option<InFlight>>,
    /// Whether the journal is written. False for a request that did not pass the middleware, as in tests.
    is_written: Cell<bool>,
}

impl Journal {
    /// Opens the journal of a request and stores it in the request's extensions.
    pub fn open(request: &ServiceRequest, is_probe: bool) -> Rc<Self> {
        let mut record = empty();
        record.method = quoted(request.method().as_str());
        record.path = request.path().to_owned();
        record.peer = request.peer_addr().map(|address| address.to_string()).unwrap_or_default();
        record.id = plain(request.headers(), &REQUEST_ID).unwrap_or(record.id);
        record.traceparent = plain(request.headers(), &TRACEPARENT);
        record.is_probe = is_probe;
        let journal = Rc::new(Self::new(record, true));
        request.extensions_mut().insert(journal.clone());
        journal
    }

    /// Opens the journal of a request that the server makes itself: a line of a batch. [`Journal::conclude`] marks its end, and then it is
    /// written.
    pub fn inside(path: &str, id: &str, tenant: &Tenant) -> Rc<Self> {
        let mut record = empty();
        (record.method, record.peer) = ("POST".into(), "batch".into());
        (record.path, record.id) = (path.to_owned(), id.to_owned());
        let journal = Rc::new(Self::new(record, false));
        journal.set_tenant(tenant);
        journal
    }

    /// Records the response to a request that the server made itself.
    pub fn conclude(&self, status: u16, error: Option<&ApiError>) {
        error.into_iter().for_each(|error| self.refuse(error));
        let path = self.record.borrow().path.clone();
        self.answer(Some(path), status);
        self.end(BodyEnd::Whole);
        self.is_written.set(true);
    }

    /// Returns the journal of a request.
    pub fn of(request: &HttpRequest) -> Rc<Self> {
        let found = request.extensions().get::<Rc<Self>>().cloned();
        found.unwrap_or_else(|| Rc::new(Self::new(empty(), false)))
    }

    fn new(record: RequestRecord, is_written: bool) -> Self {
        Self {
            record: RefCell::new(record),
            deadline: Cell::default(),
            is_overdue: Cell::new(false),
            in_flight: Cell::default(),
            is_written: Cell::new(is_written),
        }
    }

    pub fn set_in_flight(&self, in_flight: Option<InFlight>) {
        self.in_flight.set(in_flight);
    }

    /// Takes the guard that counts the request against its key's limits. The request counts until the guard is dropped.
    pub fn take_in_flight(&self) -> Option<InFlight> {
        self.in_flight.take()
    }

    pub fn set_deadline(&self, deadline: Deadline) {
        self.deadline.set(deadline);
    }

    /// Completes when the request's time is up, with the error that ends it.
    pub async fn overdue(self: Rc<Self>) -> ApiError {
        let next = || {
            let record = self.record.borrow();
            self.deadline.get().next(record.started, record.turn())
        };
        while let Some((at, error)) = next() {
            sleep_until(at.into()).await;
            // The request may have been scheduled in the meantime.
            let is_due = next().is_some_and(|(at, _)| at <= Instant::now());
            if let Some(error) = error.filter(|_| is_due) {
                self.is_overdue.set(true);
                return error;
            }
        }
        // No limit applies any more, because a request does not wait for its turn twice.
        std::future::pending().await
    }

    /// Whether the request was ended because its time was up.
    pub fn is_overdue(&self) -> bool {
        self.is_overdue.get()
    }

    /// Adds the request's id, the names of the fields left out, and the client's trace context to the response's headers.
    pub fn mark(&self, headers: &mut HeaderMap) {
        let record = self.record.borrow();
        let (value, ignored) = (|text: &str| HeaderValue::from_str(text).ok(), record.ignored.list());
        let known =
            [(REQUEST_ID, Some(record.id.as_str())), (TRACEPARENT, record.traceparent.as_deref()), (IGNORED_FIELDS, ignored.as_deref())];
        for (name, text) in known {
            text.and_then(value).into_iter().for_each(|value| drop(headers.insert(name.clone(), value)));
        }
    }

    pub fn id(&self) -> String {
        self.record.borrow().id.clone()
    }

    /// Records the model, which is known to exist. `route` is the pattern of the route that asks for it.
    pub fn set_model(&self, id: &str, route: Option<String>) {
        let mut record = self.record.borrow_mut();
        (record.model, record.route) = (Some(id.to_owned()), route);
    }

    /// Records the adapters of the request.
    pub fn set_adapters(&self, adapters: &[ActiveAdapter]) {
        let named = |adapter: &ActiveAdapter| match adapter.scale {
            1.0 => adapter.name.to_string(),
            scale => format!("{}:{scale}", adapter.name),
        };
        let names: Vec<String> = adapters.iter().map(named).collect();
        self.record.borrow_mut().adapters = Some(names.join(",")).filter(|names| !names.is_empty());
    }

    /// Returns the model, once it is known to exist.
    pub fn model(&self) -> Option<String> {
        self.record.borrow().model.clone()
    }

    /// Records the tenant, whose key pays for the tokens that are counted from now on.
    pub fn set_tenant(&self, tenant: &Tenant) {
        let mut record = self.record.borrow_mut();
        record.tenant = Some(tenant.name().to_owned()).filter(|name| !name.is_empty());
        let payer = tenant.clone();
        record.ledger = Ledger::charging(move |num_tokens| payer.spend(num_tokens));
    }

    /// Records the route and the status of the response, whose head is complete.
    pub fn answer(&self, route: Option<String>, status: u16) {
        let mut record = self.record.borrow_mut();
        (record.route, record.status) = (route, Some(status));
    }

    /// Records and counts the unknown fields that were left out.
    pub fn leave_out(&self, fields: Ignored) {
        fields.count();
        self.record.borrow_mut().ignored = fields;
    }

    /// Records why the request fails, whether its response has begun or not.
    pub fn refuse(&self, error: &ApiError) {
        self.record.borrow_mut().refusal = Some(Refusal::of(error));
    }

    /// Returns the ledger of the request's tokens.
    pub fn ledger(&self) -> Ledger {
        self.record.borrow().ledger.clone()
    }

    /// Records how the response's body has ended. Only the first call counts.
    pub fn end(&self, ending: BodyEnd) {
        let mut record = self.record.borrow_mut();
        if record.ending == BodyEnd::Left {
            record.ending = ending;
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if self.is_written.get() {
            let (record, now) = (self.record.get_mut(), Instant::now());
            if record.status.is_none() {
                metrics::count(record.route.as_deref(), record.model.as_deref(), record.status());
            }
            record.trace = spans::write(record, now);
            access_log::write(record, now);
        }
    }
}

fn empty() -> RequestRecord {
    RequestRecord {
        started: Instant::now(),
        started_at: SystemTime::now(),
        method: String::new(),
        path: String::new(),
        peer: String::new(),
        id: uuid::Uuid::new_v4().simple().to_string(),
        traceparent: None,
        trace: None,
        route: None,
        tenant: None,
        model: None,
        adapters: None,
        status: None,
        refusal: None,
        ignored: Ignored::default(),
        ledger: Ledger::default(),
        ending: BodyEnd::Left,
        is_probe: false,
    }
}

/// Returns a header's value if it is one short word of plain characters.
fn plain(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?;
    ((1..=MAX_HEADER).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_graphic())).then(|| value.to_owned())
}
