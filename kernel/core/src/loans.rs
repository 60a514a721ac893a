//! The book of loans (M-04, S-06, S-07): which thread should have one scheduling context, and what may happen to that next.
//!
//! The context itself is a value, `B`, that cannot be copied: it is in one place (messages of assertions call it the box). The book is its
//! record: it says which thread owns the context, along which calls it is lent, which thread should have it, and whether it is in the record.
//! The book has no locks, wakes no thread and moves nothing between CPUs: a driver does that. A method is an event: it changes the book and
//! says what the driver has to do, or it refuses by name and changes nothing. The kernel (`kernel/src/context.rs`) calls a method under the
//! record's lock; the simulator (`sim/src/engine/loans.rs`) and the model (`models/src/loans.rs`) call the same ones.
//!
//! # Where the context is
//! | [`Place`] | meaning |
//! |---|---|
//! | `Here` | in the record: idle if there is no `holder`, otherwise promised to the holder, which fetches it |
//! | `Away` | with the holder, or in transit to it: a call or an answer names the next holder first, and the context follows |
//! | `InHand` | with the driver, which took it under the record's lock and puts it somewhere before it releases that lock |
//! | `Nowhere` | there is none: the context has ended, or never had time |
//!
//! # Invariants
//! * I-C1: a context is in one place, and it is somewhere as long as it is live.
//! * I-C2: `holder` has the context, or gets it before it runs in user mode.
//! * I-C3: the loans are a chain without a circle. The first lender is the owner, each borrower is the next loan's lender, and the last
//!   borrower is the holder. Without loans the holder is the owner, or there is none.
//!
//! The driver keeps two more: a lender does not return to user mode (I-C4), and a thread is the owner or a borrower in one book at most
//! (I-C5).
//!
//! # Why the context is taken first
//! A loan, and a context, is ended only with the context in the driver's hands. Otherwise the context would go on to a thread that the record
//! does not name any more. So the driver waits, without a lock, until the context has arrived; meanwhile it is [sought](Book::seek), and is
//! not lent again.

use crate::generation::ThreadRef;
use abi::MAX_LOAN_DEPTH;
use core::hash::{Hash, Hasher};

/// What names a thread.
pub trait Name: Copy + Eq {
    /// Names no thread.
    const NOBODY: Self;
}

impl Name for ThreadRef {
    const NOBODY: ThreadRef = ThreadRef::NONE;
}

/// For a driver that counts its threads.
impl Name for u32 {
    const NOBODY: u32 = u32::MAX;
}

/// For a model, which has few threads.
impl Name for u8 {
    const NOBODY: u8 = u8::MAX;
}

/// The rules, or the rules with a bug planted.
pub trait Rules: Clone {
    /// Along how many calls a context can be lent.
    #[inline(always)]
    fn max_depth(&self) -> usize {
        MAX_LOAN_DEPTH
    }

    /// Whether the book has this bug.
    #[inline(always)]
    fn has(&self, flaw: Flaw) -> bool {
        let _ = flaw;
        false
    }

    /// Whether the book has no bug: then its invariants are asserted.
    #[inline(always)]
    fn is_sound(&self) -> bool {
        true
    }
}

/// The rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sound;

impl Rules for Sound {}

/// A bug of the book that a test can plant, to see that the test finds it. In a kernel the branches are compiled away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// The end of a loan ends only that one, and not those above it in the chain.
    NestedIgnored,
    /// A loan ends although the context is in transit.
    WayIgnored,
    /// A context ends although a thread has it.
    StaleAccepted,
    /// A capability of an old generation is obeyed.
    OldGenerationObeyed,
    /// The chain has no bound but the array.
    DepthIgnored,
    /// A thread lends a context that is promised to it and not fetched yet.
    UnfetchedLent,
    /// An answer gives back the newest loan, whichever call it answers.
    AnyAnswerReturns,
}

/// Why an event does not happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refused {
    /// The generation has moved on.
    Stale,
    /// The context has ended.
    Revoked,
    /// The context never had time: it can only create others.
    NoTime,
    /// It is bound already.
    Bound,
    /// It is bound to no thread, or to another one.
    NotBound,
    /// It is lent.
    Lent,
    /// This thread is not the holder.
    NotHolder,
    /// The context is in the record, and was not fetched yet.
    Unfetched,
    /// Nothing is promised to this thread.
    NotPromised,
    /// The server has a context, its own or a borrowed one, and keeps that.
    HasContext,
    /// The server is a lender in this chain: the call would close a circle.
    Cycle,
    /// The chain is as long as it may be.
    TooDeep,
    /// A driver looks for the context.
    Sought,
    /// The context is with the holder, or in transit to it: it has to be taken first.
    OnItsWay,
    /// The newest loan is not the one along this call.
    NotNewest,
    /// The context is a guest of another CPU, and has to go home first.
    Guest,
}

/// One step of the chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Loan<W> {
    /// The thread that waits for the answer.
    pub lender: W,
    /// Which of its calls it waits for.
    pub token: u64,
    /// The thread that answers.
    pub borrower: W,
}

impl<W: Name> Loan<W> {
    const NONE: Loan<W> = Loan { lender: W::NOBODY, token: 0, borrower: W::NOBODY };

    #[inline(always)]
    fn is_along(&self, lender: W, token: u64) -> bool {
        self.lender == lender && self.token == token
    }
}

/// Where the context is: see the [module](self).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Place<B> {
    /// There is none.
    Nowhere,
    /// In the record.
    Here(B),
    /// With the holder, or in transit to it.
    Away,
    /// With the driver that has the record's lock.
    InHand,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Standing {
    Over,
    Root,
    Live,
}

/// What a logout means for a context.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Logout {
    /// It belongs to the session: it ends, and no thread gets it back.
    Ends,
    /// The session has it on loan: the loan goes on.
    Skipped,
    /// It has nothing to do with the session.
    Untouched,
}

/// The record of one context. `W` names threads, `B` is the context, `R` the rules.
#[derive(Clone, Debug)]
pub struct Book<W, B, R = Sound> {
    rules: R,
    standing: Standing,
    generation: u64,
    owner: W,
    holder: W,
    place: Place<B>,
    loans: [Loan<W>; MAX_LOAN_DEPTH],
    depth: usize,
    hosted_from: Option<usize>,
    sought: u32,
}

impl<W: Name, B, R: Rules> Book<W, B, R> {
    /// A record without a context.
    pub const fn vacant(rules: R) -> Book<W, B, R> {
        Book {
            rules,
            standing: Standing::Over,
            generation: 0,
            owner: W::NOBODY,
            holder: W::NOBODY,
            place: Place::Nowhere,
            loans: [Loan::NONE; MAX_LOAN_DEPTH],
            depth: 0,
            hosted_from: None,
            sought: 0,
        }
    }

    /// The record when this context is gone. It still counts the drivers that look for the context: each counts itself out ([`Book::found`])
    /// of whatever is there by then.
    #[must_use]
    pub fn after(&self) -> Book<W, B, R> {
        Book { sought: self.sought, ..Book::vacant(self.rules.clone()) }
    }

    // ---- looking ----------------------------------------------------------------------------------------------------------

    /// Moves on with [`Book::advance`] and when the context ends. No capability has generation 0.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The thread that it is bound to.
    #[inline(always)]
    pub fn owner(&self) -> &W {
        &self.owner
    }

    /// The thread that has the context, or is about to get it.
    #[inline(always)]
    pub fn holder(&self) -> &W {
        &self.holder
    }

    /// The chain, from the owner on.
    #[inline(always)]
    pub fn loans(&self) -> &[Loan<W>] {
        &self.loans[..self.depth]
    }

    /// Where the context is.
    #[inline(always)]
    pub fn place(&self) -> &Place<B> {
        &self.place
    }

    /// The context, if it is in the record.
    pub fn kept(&self) -> Option<&B> {
        if let Place::Here(time) = &self.place { Some(time) } else { None }
    }

    /// Whether it is live and has time, wherever the context is.
    #[inline(always)]
    pub fn has_time(&self) -> bool {
        self.standing == Standing::Live
    }

    /// Whether it is a context without time, which can only create others.
    pub fn is_root(&self) -> bool {
        self.standing == Standing::Root
    }

    /// Has it ended, or never begun?
    pub fn is_over(&self) -> bool {
        self.standing == Standing::Over
    }

    /// The loan from which on the context is a guest of another CPU.
    pub fn hosted_from(&self) -> Option<usize> {
        self.hosted_from
    }

    /// Whether the context is promised to this thread, and not fetched yet.
    #[inline(always)]
    pub fn is_promised_to(&self, who: W) -> bool {
        self.holder == who && matches!(self.place, Place::Here(_))
    }

    /// Where in the chain the loan along this call is.
    pub fn loan_along(&self, lender: W, token: u64) -> Option<usize> {
        self.loans().iter().position(|loan| loan.is_along(lender, token))
    }

    /// Where in the chain the loan to this thread is.
    pub fn loan_to(&self, borrower: W) -> Option<usize> {
        self.loans().iter().position(|loan| loan.borrower == borrower)
    }

    /// The check that comes before every other for a capability of generation `held`.
    pub fn standing(&self, held: u64) -> Result<(), Refused> {
        if self.generation != held && !self.rules.has(Flaw::OldGenerationObeyed) {
            Err(Refused::Stale)
        } else if self.standing == Standing::Over {
            Err(Refused::Revoked)
        } else {
            Ok(())
        }
    }

    /// Whether I-C1 to I-C3 hold; otherwise the first that does not.
    pub fn check(&self) -> Result<(), &'static str> {
        let is_somewhere = !matches!(self.place, Place::Nowhere);
        if is_somewhere != self.has_time() {
            return Err("I-C1: there is a box as long as the context is live");
        }
        if self.holder == W::NOBODY && matches!(self.place, Place::Away) {
            return Err("I-C2: a box that is not in the record is somebody's");
        }
        let mut at = self.owner;
        for (index, loan) in self.loans().iter().enumerate() {
            let met = self.owner == loan.borrower
                || self.loans[..index].iter().any(|l| l.borrower == loan.borrower);
            if loan.lender != at || met || loan.borrower == W::NOBODY {
                return Err("I-C3: the loans are a chain without a circle");
            }
            at = loan.borrower;
        }
        let is_laid_down = self.depth == 0 && self.holder == W::NOBODY;
        if self.holder != at && !is_laid_down {
            return Err("I-C3: the last borrower is the holder");
        }
        if self.depth > self.rules.max_depth() || self.hosted_from.is_some_and(|from| from > self.depth) {
            return Err("I-C3: the chain is no longer than it may be");
        }
        Ok(())
    }

    /// Checks the invariants after every event.
    #[inline(always)]
    fn assert(&self) {
        if cfg!(debug_assertions) && self.rules.is_sound() {
            assert_eq!(self.check(), Ok(()));
        }
    }

    /// Checks, before an event, what every driver must keep to.
    #[inline(always)]
    fn expect(&self, is_so: bool, what: &'static str) {
        debug_assert!(is_so || !self.rules.is_sound(), "{what}");
    }

    // ---- making and ending ------------------------------------------------------------------------------------------------

    /// Puts a new context into the record, where it is idle.
    pub fn make(&mut self, time: B) {
        self.expect(self.is_over(), "I-C1: one context in a record");
        (self.standing, self.generation, self.place) = (Standing::Live, 1, Place::Here(time));
        self.assert();
    }

    /// Makes a context without time.
    pub fn make_root(&mut self) {
        self.expect(self.is_over(), "I-C1: one context in a record");
        (self.standing, self.generation) = (Standing::Root, 1);
        self.assert();
    }

    /// Makes every capability stale, but one of generation `held`, whose next generation is returned. A binding stays.
    pub fn advance(&mut self, held: u64) -> Result<u64, Refused> {
        self.standing(held)?;
        self.generation += 1;
        Ok(self.generation)
    }

    /// Ends the context: by a revocation, a logout, or its owner's end. The context is in hand, and all loans have ended
    /// ([`Book::end_loans`]). Returns its owner.
    pub fn end(&mut self) -> Result<W, Refused> {
        if self.standing == Standing::Over {
            return Err(Refused::Revoked);
        }
        if self.depth > 0 {
            return Err(Refused::Lent);
        }
        if matches!(self.place, Place::Away) && !self.rules.has(Flaw::StaleAccepted) {
            return Err(Refused::OnItsWay);
        }
        let owner = self.owner;
        (self.standing, self.place) = (Standing::Over, Place::Nowhere);
        (self.owner, self.holder) = (W::NOBODY, W::NOBODY);
        self.generation += 1;
        self.assert();
        Ok(owner)
    }

    /// What the logout of a session means for it. `is_its` says whether a thread works for the session, `made` whether the session made the
    /// context.
    pub fn logout(&self, made: bool, is_its: impl Fn(&W) -> bool) -> Logout {
        let is_owned = self.owner != W::NOBODY;
        let ends = match self.standing {
            Standing::Over => return Logout::Untouched,
            Standing::Live | Standing::Root if is_owned => is_its(&self.owner),
            Standing::Live => made,
            Standing::Root => false,
        };
        if ends {
            Logout::Ends
        } else if self.depth > 0 && is_its(&self.holder) {
            Logout::Skipped
        } else {
            Logout::Untouched
        }
    }

    // ---- binding ----------------------------------------------------------------------------------------------------------

    /// Whether a capability of generation `held` may bind it to a thread.
    pub fn may_bind(&self, held: u64) -> Result<(), Refused> {
        self.standing(held)?;
        match self.standing {
            Standing::Root => Err(Refused::NoTime),
            _ if self.owner != W::NOBODY || self.holder != W::NOBODY => Err(Refused::Bound),
            _ => Ok(()),
        }
    }

    /// Binds the context to `who`, after [`Book::may_bind`]. It stays in the record until it is promised: two threads may want to bind
    /// contexts to the same thread, and the one that comes second must not have moved anything.
    pub fn bind(&mut self, who: W) {
        self.expect(self.may_bind(self.generation).is_ok(), "I-C3: bound once");
        self.owner = who;
        self.assert();
    }

    /// Promises the context to `who`, to which it was bound; refused if the context was taken back since.
    pub fn promise(&mut self, who: W) -> Result<(), Refused> {
        match self.place {
            _ if self.owner != who => return Err(Refused::NotBound),
            _ if self.depth > 0 => return Err(Refused::Lent),
            Place::Here(_) => self.holder = who,
            _ => return Err(Refused::OnItsWay),
        }
        self.assert();
        Ok(())
    }

    /// `who` fetches the context that is promised to it. From here on the context is in transit to it.
    pub fn fetch(&mut self, who: W) -> Result<B, Refused> {
        if self.holder != who {
            return Err(Refused::NotPromised);
        }
        match core::mem::replace(&mut self.place, Place::Away) {
            Place::Here(time) => {
                self.assert();
                Ok(time)
            }
            before => {
                self.place = before;
                Err(Refused::NotPromised)
            }
        }
    }

    /// Whether a capability of generation `held` may unbind it.
    pub fn may_unbind(&self, held: u64) -> Result<(), Refused> {
        self.standing(held)?;
        match self.owner {
            owner if owner == W::NOBODY => Err(Refused::NotBound),
            _ if self.depth > 0 => Err(Refused::Lent),
            _ => Ok(()),
        }
    }

    /// Unbinds the context, which is in hand or in the record. Returns the thread that owned it.
    pub fn unbind(&mut self) -> Result<W, Refused> {
        self.may_unbind(self.generation)?;
        if matches!(self.place, Place::Away) {
            return Err(Refused::OnItsWay);
        }
        let owner = self.owner;
        (self.owner, self.holder) = (W::NOBODY, W::NOBODY);
        self.assert();
        Ok(owner)
    }

    /// Whether a capability of generation `held` may give it other parameters.
    pub fn may_change(&self, held: u64) -> Result<(), Refused> {
        self.standing(held)?;
        match self.standing {
            Standing::Root => Err(Refused::NoTime),
            _ if self.depth > 0 => Err(Refused::Lent),
            _ => Ok(()),
        }
    }

    // ---- the context itself ------------------------------------------------------------------------------------------------

    /// Takes the context out of the record, if it is there. If not, the holder has it, or will: then the driver takes it from there and says
    /// so ([`Book::seized`]).
    pub fn seize(&mut self) -> Option<B> {
        match core::mem::replace(&mut self.place, Place::InHand) {
            Place::Here(time) => Some(time),
            before => {
                self.place = before;
                None
            }
        }
    }

    /// The driver has taken the context from the holder.
    pub fn seized(&mut self) {
        self.expect(matches!(self.place, Place::Away), "I-C1: taken from where it was");
        self.place = Place::InHand;
        self.assert();
    }

    /// The driver has given the context to the holder.
    pub fn given(&mut self) {
        self.expect(matches!(self.place, Place::InHand), "I-C1: given by whoever had it");
        self.place = Place::Away;
        self.assert();
    }

    /// Puts the context into the record: idle, or promised to the holder.
    pub fn put(&mut self, time: B) {
        self.expect(matches!(self.place, Place::InHand | Place::Away), "I-C1: no box over another");
        self.place = Place::Here(time);
        self.assert();
    }

    /// The owner is about to end, and must not have to wait for budget: the context, which is in hand or in the record, is idle until the
    /// owner has ended.
    pub fn lay_down(&mut self) -> Result<(), Refused> {
        if self.owner == W::NOBODY {
            return Err(Refused::NotBound);
        }
        if self.depth > 0 {
            return Err(Refused::Lent);
        }
        if matches!(self.place, Place::Away) {
            return Err(Refused::OnItsWay);
        }
        self.holder = W::NOBODY;
        self.assert();
        Ok(())
    }

    /// A driver looks for the context and waits until it has arrived. Until [`Book::found`] it is not lent again: two threads that call each
    /// other all the time cannot keep it in transit.
    pub fn seek(&mut self) {
        self.sought += 1;
    }

    /// A driver that looked for the context does not any more.
    pub fn found(&mut self) {
        self.expect(self.sought > 0, "nobody finds what nobody looked for");
        self.sought -= 1;
    }

    // ---- lending ----------------------------------------------------------------------------------------------------------

    /// Whether a call of `lender` to `server`, which waits, would lend the context. After [`Refused::Cycle`] and [`Refused::TooDeep`] the call
    /// is not made; after any other refusal it is made without a loan.
    #[inline(always)]
    pub fn offer(&self, lender: W, server: W, server_has_context: bool) -> Result<(), Refused> {
        if self.holder != lender {
            return Err(Refused::NotHolder);
        }
        if matches!(self.place, Place::Here(_)) {
            return Err(Refused::Unfetched);
        }
        if server_has_context {
            let is_in_chain = self.loans().iter().any(|loan| loan.lender == server);
            return Err(if is_in_chain { Refused::Cycle } else { Refused::HasContext });
        }
        if self.is_full() { Err(Refused::TooDeep) } else { Ok(()) }
    }

    #[inline(always)]
    fn is_full(&self) -> bool {
        let max = if self.rules.has(Flaw::DepthIgnored) { MAX_LOAN_DEPTH } else { self.rules.max_depth() };
        self.depth >= max
    }

    /// Whether `lender` can lend now.
    #[inline(always)]
    pub fn may_lend(&self, lender: W) -> Result<(), Refused> {
        if self.holder != lender {
            Err(Refused::NotHolder)
        } else if matches!(self.place, Place::Here(_)) && !self.rules.has(Flaw::UnfetchedLent) {
            Err(Refused::Unfetched)
        } else if self.is_full() {
            Err(Refused::TooDeep)
        } else if self.sought > 0 {
            Err(Refused::Sought)
        } else {
            Ok(())
        }
    }

    /// Lends the context along call `token` of `lender`, after [`Book::may_lend`]. From here on the borrower is the holder, and the lender
    /// does not return to user mode. The context is in hand, or follows when the lender blocks. Returns the length of the chain.
    #[inline(always)]
    pub fn lend(&mut self, lender: W, token: u64, borrower: W) -> usize {
        self.expect(self.may_lend(lender).is_ok(), "I-C3: lent by whoever has it");
        if let Some(next) = self.loans.get_mut(self.depth) {
            *next = Loan { lender, token, borrower };
            self.depth += 1;
        }
        self.holder = borrower;
        self.assert();
        self.depth
    }

    /// Whether the holder, which answers call `token` of `lender`, can give the context back directly: only the newest loan ends.
    #[inline(always)]
    pub fn may_return(&self, lender: W, token: u64) -> Result<(), Refused> {
        let Some(newest) = self.loans().last() else { return Err(Refused::NotNewest) };
        let is_it = newest.is_along(lender, token) || self.rules.has(Flaw::AnyAnswerReturns);
        if !is_it {
            Err(Refused::NotNewest)
        } else if matches!(self.place, Place::Here(_)) {
            Err(Refused::Unfetched)
        } else if self.sought > 0 {
            Err(Refused::Sought)
        } else if self.ends_visit(self.depth - 1) {
            Err(Refused::Guest)
        } else {
            Ok(())
        }
    }

    /// Ends the newest loan by an answer, after [`Book::may_return`]: the record names the lender as holder, and the context follows when the
    /// borrower blocks. From here on the borrower has no context, and the lender may return to user mode.
    #[inline(always)]
    pub fn hand_back(&mut self) {
        self.expect(self.depth > 0, "I-C3: what is given back was lent");
        if let Some(newest) = self.depth.checked_sub(1) {
            self.holder = self.loans[newest].lender;
            self.depth = newest;
        }
        self.assert();
    }

    /// Ends the loan at `at` in the chain and those above it: by a third party, by an answer that [`Book::may_return`] refuses, or with the
    /// context. The context is in hand or in the record, and the lender of the first of these loans is the holder again. Returns the loans
    /// that have ended: each borrower has no context any more, and each lender may return to user mode and is to be woken, as it may wait for
    /// nothing else. The driver begins with the last loan: a thread that lent on what it had borrowed gets it back before it loses it.
    pub fn end_loans(&mut self, at: usize) -> Result<&[Loan<W>], Refused> {
        let is_ignored = self.rules.has(Flaw::WayIgnored) || self.rules.has(Flaw::StaleAccepted);
        if self.depth > at && matches!(self.place, Place::Away) && !is_ignored {
            return Err(Refused::OnItsWay);
        }
        let (end, mut keeps) = (self.depth, at.min(self.depth));
        if self.rules.has(Flaw::NestedIgnored) && keeps < end {
            self.loans[keeps..end].rotate_left(1);
            keeps = end - 1;
        }
        self.depth = keeps;
        if let Some(first) = self.loans[..end].get(keeps) {
            self.holder = first.lender;
            // A context that was hosted for one of these loans is at home again, or about to be.
            self.hosted_from.take_if(|from| *from >= keeps);
        }
        self.assert();
        Ok(&self.loans[keeps..end])
    }

    // ---- guests -----------------------------------------------------------------------------------------------------------

    /// Another CPU has taken the context in as a guest, for the loan that comes next. It is in the record until the server gets it, or the
    /// lender again.
    pub fn host(&mut self, guest: B) {
        self.expect(self.hosted_from.is_none(), "a guest of one CPU");
        self.hosted_from = Some(self.depth);
        self.put(guest);
    }

    /// Takes the context out of the record if it was [hosted](Book::host) for the next loan of `lender`. A context that is there for another
    /// reason is promised, or was taken from a thread that is about to end.
    #[inline(always)]
    pub fn guest(&mut self, lender: W) -> Option<B> {
        if self.hosted_from == Some(self.depth) && self.holder == lender { self.seize() } else { None }
    }

    /// Whether the end of the loan at `at` is the end of the visit: then the context, which is in hand, goes home first.
    #[inline(always)]
    pub fn ends_visit(&self, at: usize) -> bool {
        self.hosted_from.is_some_and(|from| at <= from)
    }

    /// The loan did not come about: the context is at home again.
    pub fn go_home(&mut self) {
        self.hosted_from = None;
    }

    /// What is compared between two books: loans that have ended do not count.
    fn key(&self) -> impl Eq + Hash + use<'_, W, B, R>
    where
        W: Hash,
        B: Eq + Hash,
    {
        let loans = (self.loans(), self.hosted_from, self.sought);
        (self.standing, self.generation, self.owner, self.holder, &self.place, loans)
    }
}

impl<W: Name + Hash, B: Eq + Hash, R: Rules> PartialEq for Book<W, B, R> {
    fn eq(&self, other: &Book<W, B, R>) -> bool {
        self.key() == other.key()
    }
}

impl<W: Name + Hash, B: Eq + Hash, R: Rules> Eq for Book<W, B, R> {}

impl<W: Name + Hash, B: Eq + Hash, R: Rules> Hash for Book<W, B, R> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}
