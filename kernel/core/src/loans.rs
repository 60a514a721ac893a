//! The book of loans (M-04, S-06, S-07): who should have the time of one scheduling context, and what may happen to it next.
//!
//! The time is a box, `B`, and a value: it is in one place. The book is the record of one context. It says who owns the context, along
//! which calls it is lent, who should have the box, and whether the box is in the record. It has no locks, wakes nobody and moves nothing
//! between CPUs: a driver does that. A method is an event: it changes the book and says what the driver has to do, or it refuses by name
//! and changes nothing. The kernel (`kernel/src/context.rs`) calls a method under the record's lock; the simulator
//! (`sim/src/engine/loans.rs`) and the model (`models/src/loans.rs`) call the same ones.
//!
//! # Where the box is
//! | [`Place`] | meaning |
//! |---|---|
//! | `Here` | in the record: idle if `holder` is nobody, otherwise promised to the holder, which fetches it |
//! | `Away` | with the holder, or on its way to it: a call or an answer names the next holder first, and the box follows |
//! | `InHand` | with the driver, which took it under the record's lock and puts it somewhere before it lets that lock go |
//! | `Nowhere` | there is none: the context is over, or never had time |
//!
//! # Invariants
//! * I-C1: a box is in one place. There is a box as long as the context is live.
//! * I-C2: `holder` has the box, or gets it before it runs in user mode.
//! * I-C3: the loans are a chain without a circle. The first lender is the owner, each borrower is the next one's lender, and the last
//!   borrower is the holder. Without loans the holder is the owner or nobody.
//!
//! The driver's part: a lender does not return to user mode (I-C4), and a thread is the owner or a borrower in one book at most (I-C5).
//!
//! # Who takes the box first
//! A loan ends, and a context ends, only with the box in hand. Otherwise the box would go on to a thread that the record does not name any
//! more. So the driver waits, without a lock, until the box has arrived; meanwhile it is [sought](Book::seek), and is not lent anew.

use crate::generation::ThreadRef;
use abi::MAX_LOAN_DEPTH;
use core::hash::{Hash, Hasher};

/// What names a thread.
pub trait Name: Copy + Eq {
    /// Names nobody.
    const NOBODY: Self;
}

impl Name for ThreadRef {
    const NOBODY: ThreadRef = ThreadRef::NONE;
}

/// For a driver that counts its threads.
impl Name for u32 {
    const NOBODY: u32 = u32::MAX;
}

/// For a model, which has few.
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

    /// Whether it has none: then its invariants are asserted.
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
    /// The end of a loan ends that one only, and not those above it.
    NestedIgnored,
    /// A loan ends although the box is on its way.
    WayIgnored,
    /// A context ends although somebody has the box.
    StaleAccepted,
    /// A capability of an old generation is obeyed.
    OldGenerationObeyed,
    /// The chain has no bound but the array.
    DepthIgnored,
    /// A thread lends what is promised to it and not fetched yet.
    UnfetchedLent,
    /// An answer gives back the newest loan, whichever call it answers.
    AnyAnswerReturns,
}

/// Why an event does not happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refused {
    /// The generation has moved on.
    Stale,
    /// The context is over.
    Revoked,
    /// The context never had time: it can only create others.
    NoTime,
    /// It is bound already.
    Bound,
    /// It is bound to nobody, or to another.
    NotBound,
    /// It is lent.
    Lent,
    /// This thread should not have the box.
    NotHolder,
    /// The box is in the record, and was not fetched yet.
    Unfetched,
    /// Nothing is promised to this thread.
    NotPromised,
    /// The server has a context, its own or another's: it keeps that.
    HasContext,
    /// The server is a lender in this chain: the call would close a circle.
    Cycle,
    /// The chain is as long as it may be.
    TooDeep,
    /// Somebody looks for the box.
    Sought,
    /// The box is with the holder, or on its way there: it has to be taken first.
    OnItsWay,
    /// The newest loan is not the one along this call.
    NotNewest,
    /// The box is a guest of another CPU, and has to go home first.
    Guest,
}

/// One step of the chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Loan<W> {
    /// Who waits for the answer.
    pub lender: W,
    /// Which of its calls that is.
    pub token: u64,
    /// Who answers.
    pub borrower: W,
}

impl<W: Name> Loan<W> {
    const NONE: Loan<W> = Loan { lender: W::NOBODY, token: 0, borrower: W::NOBODY };

    #[inline(always)]
    fn is_along(&self, lender: W, token: u64) -> bool {
        self.lender == lender && self.token == token
    }
}

/// Where the box is: see the [module](self).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Place<B> {
    /// There is none.
    Nowhere,
    /// In the record.
    Here(B),
    /// With the holder, or on its way there.
    Away,
    /// With whoever has the record's lock.
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
    /// It is the session's: it ends, and nothing is restored to anybody.
    Ends,
    /// The session has it on loan: the loan goes on.
    Skipped,
    /// It has nothing to do with the session.
    Untouched,
}

/// The record of one context. `W` names threads, `B` is the box, `R` the rules.
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
    /// The record has no context.
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

    /// What is in the record after this context. Whoever still looks for the box counts itself out of whatever is there by then.
    #[must_use]
    pub fn after(&self) -> Book<W, B, R> {
        Book { sought: self.sought, ..Book::vacant(self.rules.clone()) }
    }

    // ---- looking ----------------------------------------------------------------------------------------------------------

    /// Moves on when the context is taken back. Nobody remembers generation 0.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The thread that it is bound to.
    #[inline(always)]
    pub fn owner(&self) -> &W {
        &self.owner
    }

    /// Who has the box, or is about to.
    #[inline(always)]
    pub fn holder(&self) -> &W {
        &self.holder
    }

    /// The chain, from the owner on.
    #[inline(always)]
    pub fn loans(&self) -> &[Loan<W>] {
        &self.loans[..self.depth]
    }

    /// Where the box is.
    #[inline(always)]
    pub fn place(&self) -> &Place<B> {
        &self.place
    }

    /// The box, if it is in the record.
    pub fn kept(&self) -> Option<&B> {
        if let Place::Here(time) = &self.place { Some(time) } else { None }
    }

    /// Is there time in it, somewhere?
    #[inline(always)]
    pub fn has_time(&self) -> bool {
        self.standing == Standing::Live
    }

    /// Is it the context without time, that can only create?
    pub fn is_root(&self) -> bool {
        self.standing == Standing::Root
    }

    /// Has it ended, or never begun?
    pub fn is_over(&self) -> bool {
        self.standing == Standing::Over
    }

    /// From this loan on the box is a guest of another CPU.
    pub fn hosted_from(&self) -> Option<usize> {
        self.hosted_from
    }

    /// Is the box promised to this thread?
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

    /// What a capability of generation `held` is told before anything else.
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

    /// After every event.
    #[inline(always)]
    fn assert(&self) {
        if cfg!(debug_assertions) && self.rules.is_sound() {
            assert_eq!(self.check(), Ok(()));
        }
    }

    /// Before an event: a driver that does otherwise has a bug.
    #[inline(always)]
    fn expect(&self, is_so: bool, what: &'static str) {
        debug_assert!(is_so || !self.rules.is_sound(), "{what}");
    }

    // ---- making and ending ------------------------------------------------------------------------------------------------

    /// A context with this time is in the record from now on, idle.
    pub fn make(&mut self, time: B) {
        self.expect(self.is_over(), "I-C1: one context in a record");
        (self.standing, self.generation, self.place) = (Standing::Live, 1, Place::Here(time));
        self.assert();
    }

    /// The same, without time.
    pub fn make_root(&mut self) {
        self.expect(self.is_over(), "I-C1: one context in a record");
        (self.standing, self.generation) = (Standing::Root, 1);
        self.assert();
    }

    /// Every capability but one of generation `held` is stale from now on; that one's next generation. What is bound stays bound.
    pub fn advance(&mut self, held: u64) -> Result<u64, Refused> {
        self.standing(held)?;
        self.generation += 1;
        Ok(self.generation)
    }

    /// The context is over: by a revocation, a logout, or its owner's end. The box is in hand, and all loans have ended ([`Book::end_loans`]).
    /// Says who owned it, whose it is no more.
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

    /// A session logs out. `is_its` says whether a thread works for it, `made` whether the session made the context.
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

    /// Whether a capability of generation `held` may bind it to somebody.
    pub fn may_bind(&self, held: u64) -> Result<(), Refused> {
        self.standing(held)?;
        match self.standing {
            Standing::Root => Err(Refused::NoTime),
            _ if self.owner != W::NOBODY || self.holder != W::NOBODY => Err(Refused::Bound),
            _ => Ok(()),
        }
    }

    /// It is bound to `who`, after [`Book::may_bind`]. The box stays in the record until it is promised: two threads may want to bind one
    /// thread, and the one that comes second must not have moved anything.
    pub fn bind(&mut self, who: W) {
        self.expect(self.may_bind(self.generation).is_ok(), "I-C3: bound once");
        self.owner = who;
        self.assert();
    }

    /// The box is promised to `who`, to whom it was bound. It is not, if somebody has taken the context back since.
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

    /// `who` fetches what is promised to it. From here on the box is on its way to it.
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

    /// The owner goes on without: the box is in hand or in the record. Says who it was.
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

    // ---- the box ----------------------------------------------------------------------------------------------------------

    /// Takes the box out of the record, if it is there. If not, the holder has it, or will: then the driver takes it from there and says
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

    /// The driver has taken the box from the holder.
    pub fn seized(&mut self) {
        self.expect(matches!(self.place, Place::Away), "I-C1: taken from where it was");
        self.place = Place::InHand;
        self.assert();
    }

    /// The driver has put the box into the holder's hands.
    pub fn given(&mut self) {
        self.expect(matches!(self.place, Place::InHand), "I-C1: given by whoever had it");
        self.place = Place::Away;
        self.assert();
    }

    /// The box lies in the record: idle, or promised to the holder.
    pub fn put(&mut self, time: B) {
        self.expect(matches!(self.place, Place::InHand | Place::Away), "I-C1: no box over another");
        self.place = Place::Here(time);
        self.assert();
    }

    /// The owner is to end, and must not have to wait for budget: the box, which is in the record, lies there idle until the owner has ended.
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

    /// Somebody looks for the box and waits until it has arrived. Until [`Book::found`] it is not lent anew: two threads that call each
    /// other all the time cannot keep it away.
    pub fn seek(&mut self) {
        self.sought += 1;
    }

    /// Who looked for it does not any more.
    pub fn found(&mut self) {
        self.expect(self.sought > 0, "nobody finds what nobody looked for");
        self.sought -= 1;
    }

    // ---- lending ----------------------------------------------------------------------------------------------------------

    /// Whether a call of `lender` to `server`, which waits, would lend. [`Refused::Cycle`] and [`Refused::TooDeep`]: such a call is not
    /// made. All others: it is made without a loan.
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

    /// The context is lent along call `token` of `lender`, after [`Book::may_lend`]. From here on the borrower has this context, and the
    /// lender does not return to user mode. The box is in hand, or follows when the lender waits. Says how long the chain is.
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

    /// Whether the holder, who answers call `token` of `lender`, can give the box back directly: the newest loan ends, and nobody's else.
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

    /// The newest loan ends by an answer, after [`Book::may_return`]: the record names the lender, and the box follows when the borrower
    /// waits. From here on the borrower has no context, and the lender may return to user mode.
    #[inline(always)]
    pub fn hand_back(&mut self) {
        self.expect(self.depth > 0, "I-C3: what is given back was lent");
        if let Some(newest) = self.depth.checked_sub(1) {
            self.holder = self.loans[newest].lender;
            self.depth = newest;
        }
        self.assert();
    }

    /// The loan at `at` in the chain ends, and those above it: by a third party, by an answer that is not as simple as above, or with the
    /// context. The box is in hand, and the first lender is the holder again. For each loan that has ended: the borrower has no context any
    /// more, and the lender may return to user mode; it is to be woken, as it may wait for nothing else. The driver begins with the last:
    /// who lent on what it had borrowed has it back before it has nothing.
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
            // What was taken in for one of these is at home again, or about to be.
            self.hosted_from.take_if(|from| *from >= keeps);
        }
        self.assert();
        Ok(&self.loans[keeps..end])
    }

    // ---- guests -----------------------------------------------------------------------------------------------------------

    /// Another CPU has taken the box in, for the loan that comes next. It is in the record until the server has it, or the lender again.
    pub fn host(&mut self, guest: B) {
        self.expect(self.hosted_from.is_none(), "a guest of one CPU");
        self.hosted_from = Some(self.depth);
        self.put(guest);
    }

    /// Takes the box out of the record if it was [hosted](Book::host) for the next loan of `lender`. What else is in the record is promised,
    /// or was taken from a thread that is to end.
    #[inline(always)]
    pub fn guest(&mut self, lender: W) -> Option<B> {
        if self.hosted_from == Some(self.depth) && self.holder == lender { self.seize() } else { None }
    }

    /// Whether the end of the loan at `at` is the end of the visit: then the box, which is in hand, goes home first.
    #[inline(always)]
    pub fn ends_visit(&self, at: usize) -> bool {
        self.hosted_from.is_some_and(|from| at <= from)
    }

    /// The loan did not come about: the box is at home again.
    pub fn go_home(&mut self) {
        self.hosted_from = None;
    }

    /// What makes two books the same: loans that have ended do not count.
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
