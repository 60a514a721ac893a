//! A tenant: an untrusted module, what each of its requests may use, and a purse that all of them draw on.
//!
//! ```text
//!            each period: full again                    no more than this for one request
//!   keeper ───────────────────────► purse ── request ──► nursery's pool ──► guest (exactly this budget)
//!                                     ▲                       │
//!                                     └── what was not used ──┘  by the runtime's own account
//! ```
//! A guest gets its request as in CGI: `REQUEST_METHOD`, `REQUEST_URI` and `HTTP_*` are in its environment, its input is the
//! body, its output the answer. Its exit code is the status; 0 is 200. The header `Proxy`, and those with `_` in their
//! names, are left out: as variables they would be taken for something else.

use crate::http::{Answer, Request};
use janus::{Budget, Cx, NurseryOptions, Recharge, Resource, TaskError};
use janus_guest::amount::part;
use janus_guest::{End, GuestError, Input, Options, Output, Program, Tally, Used, World};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The most bytes of an answer.
pub const ANSWER_MAX: usize = 256 << 10;
/// The export that is called.
const ENTRY: &str = "_start";

/// What a tenant may use.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// What one request may use.
    pub request: Budget,
    /// What all of them may use in a period. For memory, what they may have at a time.
    pub purse: Budget,
    /// The time after which the purse is full again.
    pub period: Duration,
    /// How long a guest may take, waiting included.
    pub timeout: Duration,
}

/// What a tenant may draw on in each period.
#[derive(Debug)]
struct Purse {
    left: Mutex<Left>,
    full: Budget,
}

/// What is left of the current period.
#[derive(Debug)]
struct Left {
    budget: Budget,
    /// The number of the period, by which a returned rest is matched with the period that it was taken from.
    period: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Purse {
    fn new(full: Budget) -> Purse {
        Purse { left: Mutex::new(Left { budget: full, period: 0 }), full }
    }

    /// Takes all of the amount or nothing: the error is the part that is too small. Returns the number of the period.
    fn take(&self, amount: &Budget) -> Result<u64, Resource> {
        let mut left = locked(&self.left);
        left.budget.take_all(amount)?;
        Ok(left.period)
    }

    /// Gives back a rest, up to a full purse; a request that began in an earlier period gives back only its memory.
    fn give(&self, period: u64, rest: &Budget) {
        let mut left = locked(&self.left);
        let same = left.period == period;
        left.budget.put(&if same { *rest } else { Budget::ZERO.with(Resource::Memory, rest.memory) });
        for resource in Resource::ALL {
            let most = self.full.get(resource);
            *left.budget.get_mut(resource) = left.budget.get(resource).min(most);
        }
    }

    /// Begins a new period. Memory is only lent, and comes back by itself.
    fn recharge(&self) {
        let mut left = locked(&self.left);
        left.budget = self.full.with(Resource::Memory, left.budget.memory);
        left.period += 1;
    }
}

/// Counters of a tenant.
#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    ok: AtomicU64,
    /// Requests that failed because a part of a budget, of the request or of the purse, was used up; by part.
    spent: [AtomicU64; 5],
    other: AtomicU64,
    ops: AtomicU64,
    memory: AtomicU64,
}

/// The counters as plain numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Requests.
    pub requests: u64,
    /// Requests whose guest ended well.
    pub ok: u64,
    /// Requests whose guest had used up, or was not given, a part of a budget; by part.
    pub spent: [u64; 5],
    /// Requests whose guest failed in another way.
    pub other: u64,
    /// Operations in all.
    pub ops: u64,
    /// The most bytes that one request used.
    pub memory: u64,
}

/// A tenant of the server.
pub struct Tenant {
    /// The first part of the paths of its requests.
    pub name: String,
    /// What it may use.
    pub terms: Terms,
    /// The module, or why it was refused.
    program: Result<Program, String>,
    purse: Purse,
    counts: Counts,
}

type Ended = Result<Result<End, GuestError>, TaskError>;

impl Tenant {
    /// A tenant whose module was accepted or refused.
    #[must_use]
    pub fn new(name: String, program: Result<Program, String>, terms: Terms) -> Tenant {
        Tenant { name, terms, program, purse: Purse::new(terms.purse), counts: Counts::default() }
    }

    /// A new period begins.
    pub fn recharge(&self) {
        self.purse.recharge();
    }

    /// Why its module was refused, if it was.
    #[must_use]
    pub fn refused(&self) -> Option<&str> {
        self.program.as_ref().err().map(String::as_str)
    }

    /// The counters so far.
    #[must_use]
    pub fn seen(&self) -> Seen {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counts { requests, ok, spent, other, ops, memory } = &self.counts;
        Seen {
            requests: get(requests),
            ok: get(ok),
            spent: spent.each_ref().map(get),
            other: get(other),
            ops: get(ops),
            memory: get(memory),
        }
    }

    /// Serves one request. Whatever the guest does, there is an answer.
    pub fn serve(&self, cx: &Cx, request: Request) -> Answer {
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        let answer = self.attempt(cx, request);
        let counter = match answer.spent {
            Some(name) => Resource::ALL
                .into_iter()
                .position(|resource| part(resource) == name)
                .map_or(&self.counts.other, |index| &self.counts.spent[index]),
            None if answer.status < 500 => &self.counts.ok,
            None => &self.counts.other,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        answer
    }

    fn attempt(&self, cx: &Cx, request: Request) -> Answer {
        let program = match &self.program {
            Ok(program) => program,
            Err(why) => return self.failed(500, &format!("its module was refused: {why}")),
        };
        // The guest is a child of this task, and that child is taken from the tenant's purse.
        let budget = self.terms.request;
        let whole = Budget { spawn_count: budget.spawn_count.saturating_add(1), ..budget };
        let period = match self.purse.take(&whole) {
            Ok(period) => period,
            // Its other requests have the memory now, and will be done soon.
            Err(Resource::Memory) => {
                let mut answer = self.spent(503, Resource::Memory, "is in use by its other requests");
                answer.retry_after = Some(Duration::from_secs(1));
                return answer;
            }
            Err(resource) => {
                let mut answer = self.spent(429, resource, "of its period is spent");
                answer.retry_after = Some(self.terms.period);
                return answer;
            }
        };
        let output = Body::default();
        let tally = Arc::new(Tally::default());
        let world = Arc::new(self.world(cx, request, &output));
        let options = Options { world, tally: tally.clone(), recharge: None };
        let (ended, rest) = self.run(cx, program, &whole, options);
        self.purse.give(period, &rest);
        let used = tally.used();
        self.counts.ops.fetch_add(used.ops, Ordering::Relaxed);
        self.counts.memory.fetch_max(used.memory, Ordering::Relaxed);
        self.judge(ended, &used, &output)
    }

    fn world(&self, cx: &Cx, request: Request, output: &Body) -> World {
        let Request { method, target, headers, body, .. } = request;
        let headers =
            headers.into_iter().filter_map(|(name, value)| Some(format!("{}={value}", variable(&name)?)));
        let request = [format!("REQUEST_METHOD={method}"), format!("REQUEST_URI={target}")];
        World {
            args: vec![self.name.clone()],
            env: request.into_iter().chain(headers).collect(),
            input: Mutex::new(Input::Bytes(body)),
            output: Output::direct(output.clone()),
            epoch: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(cx.now()),
            seed: None,
            ..World::default()
        }
    }

    /// Runs a guest alone in its nursery, so that it is known when it cannot go on; returns how it ended and what is left.
    fn run(&self, cx: &Cx, program: &Program, whole: &Budget, options: Options) -> (Ended, Budget) {
        let mut ended: Ended = Err(TaskError::Cancelled);
        let mut rest = *whole;
        let terms = NurseryOptions::new().pool(*whole).recharge(Recharge::Manual);
        let closed = cx.nursery_with(terms, |nursery| {
            let guest = match program.spawn(cx, nursery, ENTRY, self.terms.request, options) {
                Ok(guest) => guest,
                Err(error) => {
                    ended = Err(TaskError::Failed(Arc::new(error)));
                    return Ok(());
                }
            };
            ended = match guest.join_timeout(cx, self.terms.timeout) {
                Ok(ended) => ended,
                Err(guest) => {
                    nursery.cancel();
                    let _ = guest.join(cx);
                    Ok(Err(GuestError::Cancelled))
                }
            };
            rest = nursery.pool();
            Ok(())
        });
        // Nothing ran. This cannot happen, because this task has an unlimited budget.
        if let Err(TaskError::Pool(resource)) = closed {
            ended = Err(TaskError::BudgetExceeded(resource));
        }
        (ended, rest)
    }

    fn judge(&self, ended: Ended, used: &Used, output: &Body) -> Answer {
        let failed = |why: &str| match used.refused() {
            // The guest was refused something, and failed afterwards.
            Some(resource) => self.spent(503, resource, &format!("of a request is spent, and then {why}")),
            None => self.failed(500, why),
        };
        match ended {
            Ok(Ok(end)) => match (end.exit.unwrap_or(0), output.take()) {
                (_, None) => failed(&format!("its answer is longer than {ANSWER_MAX} bytes")),
                (0, Some(body)) => Answer { body, ..Answer::text(200, "") },
                (status @ 200..=599, Some(body)) => Answer { body, ..Answer::text(status as u16, "") },
                (code, _) => failed(&format!("it ended with code {code}")),
            },
            Ok(Err(GuestError::Cancelled)) => self.failed(504, "it took too long"),
            Ok(Err(GuestError::NoMemory { bytes })) => {
                self.spent(503, Resource::Memory, &format!("of a request is less than its {bytes} bytes"))
            }
            Ok(Err(error)) => failed(&error.to_string()),
            Err(TaskError::BudgetExceeded(resource)) => self.spent(503, resource, "of a request is spent"),
            Err(TaskError::Cancelled) => self.failed(503, "the server ends"),
            Err(error) => failed(&error.to_string()),
        }
    }

    fn spent(&self, status: u16, resource: Resource, what: &str) -> Answer {
        let name = part(resource);
        Answer {
            spent: Some(name),
            ..Answer::text(status, &format!("{}: the {name} budget {what}", self.name))
        }
    }

    fn failed(&self, status: u16, why: &str) -> Answer {
        Answer::text(status, &format!("{}: {why}", self.name))
    }
}

/// The variable for a header, if it gets one. `Proxy` gets none, because many libraries take `HTTP_PROXY` for the operator's
/// choice of a proxy (httpoxy); nor does a name with `_`, which would be taken for the same one with `-`.
fn variable(header: &str) -> Option<String> {
    let safe = !header.contains('_') && !header.eq_ignore_ascii_case("proxy");
    safe.then(|| format!("HTTP_{}", header.to_ascii_uppercase().replace('-', "_")))
}

/// What a guest wrote, unless that is too long.
#[derive(Clone, Debug, Default)]
struct Body(Arc<Mutex<Option<Vec<u8>>>>);

impl Body {
    /// Takes the bytes; `None` if there were too many.
    fn take(&self) -> Option<Vec<u8>> {
        let mut bytes = locked(&self.0);
        let long = bytes.as_ref().is_some_and(|bytes| bytes.len() > ANSWER_MAX);
        if long { None } else { Some(bytes.take().unwrap_or_default()) }
    }
}

impl Write for Body {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let mut bytes = locked(&self.0);
        let bytes = bytes.get_or_insert_default();
        if bytes.len() > ANSWER_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        bytes.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use janus::{Config, Runtime};

    /// What is taken is given back, once, and never beyond a full purse; a new period fills everything but memory.
    #[test]
    fn j_14_purses() {
        let full = Budget { ops: 100, memory: 50, spawn_count: 2, channel_ops: 5, syscalls: 5 };
        let purse = Purse::new(full);
        let some = Budget { ops: 60, memory: 30, spawn_count: 1, ..Budget::ZERO };
        let first = purse.take(&some).expect("it is full");
        assert_eq!(purse.take(&some), Err(Resource::Ops));
        purse.recharge();
        assert_eq!(purse.take(&some), Err(Resource::Memory), "memory is lent, and not back yet");
        purse.give(first, &Budget { ops: 10, ..some });
        assert_eq!(locked(&purse.left).budget, full);
        let second = purse.take(&some).expect("it is full again");
        purse.give(second, &Budget { ops: 59, ..some });
        assert_eq!(locked(&purse.left).budget.ops, 99);
    }

    /// Not even when others drew on the new period, so that there would be room for it.
    #[test]
    fn j_13_a_rest_stays_in_its_period() {
        let full = Budget { ops: 100, memory: 50, spawn_count: 4, channel_ops: 5, syscalls: 5 };
        let purse = Purse::new(full);
        let some = Budget { ops: 60, memory: 20, spawn_count: 1, ..Budget::ZERO };
        let first = purse.take(&some).expect("it is full");
        purse.recharge();
        let second = purse.take(&some).expect("it is full again");
        purse.give(first, &some);
        assert_eq!(locked(&purse.left).budget, Budget { ops: 40, memory: 30, spawn_count: 3, ..full });
        purse.give(second, &some);
        assert_eq!(locked(&purse.left).budget, full);
    }

    fn tenant() -> Tenant {
        let (second, budget) = (Duration::from_secs(1), Budget::ZERO);
        let terms = Terms { request: budget, purse: budget, period: second, timeout: second };
        Tenant::new("a".to_string(), Err("it is none".to_string()), terms)
    }

    /// A client must not choose a guest's proxy, nor hide one header behind another.
    #[test]
    fn j_13_headers_that_pass_for_something_else_are_left_out() {
        let names = ["proxy", "x_a", "x-a", "proxy-b", "host"];
        let headers = names.map(|name| (name.to_string(), format!("of {name}")));
        let (method, target) = ("GET".to_string(), "/a".to_string());
        let request = Request { method, target, headers: headers.into(), body: Vec::new(), keep_alive: true };
        // SAFETY: no task here keeps anything of its thread over a suspension.
        let runtime = unsafe { Runtime::new(Config::new().workers(1)) }.expect("a runtime");
        let env = runtime.run(move |cx| tenant().world(cx, request, &Body::default()).env).expect("it runs");
        let request = ["REQUEST_METHOD=GET", "REQUEST_URI=/a"];
        let known = ["HTTP_X_A=of x-a", "HTTP_PROXY_B=of proxy-b", "HTTP_HOST=of host"];
        assert_eq!(env, [&request[..], &known].concat());
    }

    #[test]
    fn j_13_a_spent_part_is_named() {
        for resource in Resource::ALL {
            let answer = tenant().spent(503, resource, "of a request is spent");
            let text = format!("a: the {} budget of a request is spent\n", part(resource));
            assert_eq!((answer.body, answer.spent), (text.into_bytes(), Some(part(resource))));
        }
    }

    #[test]
    fn j_13_answers_have_a_limit() {
        let mut output = Body::default();
        assert_eq!(output.take(), Some(Vec::new()));
        output.write_all(&vec![b'x'; ANSWER_MAX]).expect("it fits");
        output.write_all(b"y").expect("the piece that crosses the line is taken");
        assert!(output.write_all(b"z").is_err());
        assert_eq!(output.take(), None);
    }
}
