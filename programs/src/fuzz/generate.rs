//! Makes entries: nonsense, nearly valid ones, and valid ones with something wrong in the message.

use rt::abi::{
    BOOTINFO_VADDR, CAPSET_VADDR, CapId, Interface, MAX_MESSAGE_BYTES, Op, RING_VADDR, SQE_VERSION, Sqe,
    USER_END_VADDR, flags, rights,
};
use schema::messages_capnp as m;
use schema::traits::{FromPointerBuilder, HasStructSize, Owned};

use super::contexts;
use crate::random::Random;

/// Pages that may be written, followed by one that is not mapped.
pub const ARENA: u64 = 0x30_0000_0000;
/// How many pages the arena has.
pub const ARENA_PAGES: u64 = 16;
/// A page that may only be read.
pub const READ_ONLY: u64 = 0x30_1000_0000;
/// A page of characters that may be printed.
pub const PRINTED: u64 = 0x30_2000_0000;
/// Where fuzzed mappings go: slots of a mebibyte each.
pub const PLACES: u64 = 0x31_0000_0000;
const PLACE_BYTES: u64 = 1 << 20;
const PLACE_COUNT: u64 = 24;
const PAGE: u64 = 4096;

/// The most capabilities whose interface is known.
pub const KNOWN_MAX: usize = 48;
/// The most capabilities that are remembered from completions.
const RECENT_MAX: usize = 32;
/// Words of the longest message template.
pub(super) const TEMPLATE_WORDS: usize = 32;
const TEMPLATES_MAX: usize = 32;

/// A valid message for a method.
#[derive(Clone, Copy)]
struct Template {
    interface: Interface,
    method: u32,
    words: [u64; TEMPLATE_WORDS],
    len: usize,
}

/// What all threads of a process share.
pub struct World {
    templates: [Option<Template>; TEMPLATES_MAX],
    /// Capabilities with their interfaces.
    pub known: [(u32, u16); KNOWN_MAX],
    /// How many entries of `known` are used.
    pub known_count: usize,
    /// An endpoint whose server is gone, so calls to it fail.
    pub dead_end: u32,
    /// A capability that was revoked.
    pub revoked: u32,
    /// An address in the program's text at which a thread ends at once.
    pub text: u64,
}

impl World {
    /// Creates the templates.
    pub fn new(text: u64) -> World {
        let mut world = World {
            templates: [None; TEMPLATES_MAX],
            known: [(0, 0); KNOWN_MAX],
            known_count: 0,
            dead_end: 0,
            revoked: 0,
            text,
        };
        world.fill();
        world
    }

    /// Adds a capability to `known`.
    pub fn know(&mut self, cap: CapId, interface: Interface) {
        if self.known_count < KNOWN_MAX {
            self.known[self.known_count] = (cap.0, interface as u16);
            self.known_count += 1;
        }
    }

    fn add<T>(&mut self, interface: Interface, method: u32, more: usize, fill: impl FnOnce(T::Builder<'_>))
    where
        T: Owned,
        for<'b> T::Builder<'b>: HasStructSize + FromPointerBuilder<'b>,
    {
        let mut words = [0; TEMPLATE_WORDS];
        let len = encoded::<T>(&mut words, more, fill);
        let template = Template { interface, method, words, len };
        if let Some(slot) = self.templates.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some(template);
        }
    }

    fn fill(&mut self) {
        use Interface as I;
        let (text, stack) = (self.text, ARENA + 2 * PAGE);
        self.add::<m::thread_spawner_create_params::Owned>(I::ThreadSpawner, 0, 0, |mut p| {
            p.set_entry(text);
            p.set_stack_top(stack);
        });
        self.add::<m::thread_control_set_fs_base_params::Owned>(I::ThreadControl, 1, 0, |mut p| {
            p.set_fs_base(ARENA);
        });
        self.add::<m::thread_control_set_affinity_params::Owned>(I::ThreadControl, 3, 4, |mut p| {
            p.set_cpus(&[3, 0, 0, 0, 0, 0, 0, 0]);
        });
        for method in [0, 2] {
            self.add::<m::virtual_memory_map_params::Owned>(I::VirtualMemory, method, 0, |mut p| {
                p.set_addr(PLACES);
                p.set_bytes(PAGE);
                p.set_writable(true);
            });
        }
        self.add::<m::virtual_memory_unmap_params::Owned>(I::VirtualMemory, 1, 0, |mut p| {
            p.set_addr(PLACES);
            p.set_bytes(PAGE);
        });
        for _ in 0..2 {
            self.add::<m::memory_object_map_params::Owned>(I::MemoryObject, 0, 0, |mut p| {
                p.set_addr(PLACES + PLACE_BYTES);
                p.set_bytes(PAGE);
            });
        }
        for method in [1, 2] {
            self.add::<m::memory_object_unmap_params::Owned>(I::MemoryObject, method, 0, |mut p| {
                p.set_addr(PLACES + PLACE_BYTES);
                p.set_bytes(PAGE);
            });
        }
        self.add::<m::system_info_info_params::Owned>(I::SystemInfo, 0, 0, |_| {});
        for method in 1..=5 {
            self.add::<m::list_params::Owned>(I::SystemInfo, method, 0, |mut p| p.set_start(0));
        }
        self.add::<m::list_params::Owned>(I::ProcessSpawner, 1, 0, |mut p| p.set_start(1));
        for _ in 0..2 {
            self.add::<m::factory_create_memory_object_params::Owned>(I::Factory, 1, 0, |mut p| {
                p.set_bytes(2 * PAGE);
            });
        }
        self.add::<m::factory_create_session_params::Owned>(I::Factory, 2, 2, |mut p| p.set_name("fuzz"));
        self.add::<m::scheduling_policy_set_weight_params::Owned>(I::SchedulingPolicy, 0, 0, |mut p| {
            p.set_weight(64);
        });
        self.add::<m::scheduling_policy_set_latency_class_params::Owned>(
            I::SchedulingPolicy,
            1,
            0,
            |mut p| {
                p.set_class(1);
            },
        );
        self.add::<m::boot_manifest_read_params::Owned>(I::BootManifest, 0, 0, |mut p| p.set_offset(8));
    }
}

/// Writes a message into `words`; returns its length in words, 0 if it does not fit.
pub(super) fn encoded<T>(
    words: &mut [u64; TEMPLATE_WORDS],
    more: usize,
    fill: impl FnOnce(T::Builder<'_>),
) -> usize
where
    T: Owned,
    for<'b> T::Builder<'b>: HasStructSize + FromPointerBuilder<'b>,
{
    let mut bytes = [0; TEMPLATE_WORDS * 8];
    let Ok(len) = schema::encode::<T>(&mut bytes, more, fill) else { return 0 };
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = chunk.first_chunk().map_or(0, |raw| u64::from_le_bytes(*raw));
    }
    len / 8
}

/// The message of a spawn, which is sent less often than the others.
fn spawn_message(words: &mut [u64; TEMPLATE_WORDS]) -> usize {
    let fill = |mut p: m::process_spawner_spawn_params::Builder<'_>| {
        p.set_program("fuzz");
        p.set_args(b"leaf\0");
        let mut grant = p.init_grants(1).get(0);
        grant.set_name("thread_control");
        grant.set_cap(Interface::ThreadControl as u32);
        grant.set_rights(rights::CALL);
    };
    encoded::<m::process_spawner_spawn_params::Owned>(words, 1 + 1 + 1 + 2 + 8 + 4, fill)
}

/// Makes the entries of one thread.
pub struct Generator<'a> {
    /// The source of randomness.
    pub random: Random,
    world: &'a World,
    /// The page of the arena that holds this thread's messages.
    page: u64,
    ring: u64,
    recent: [u32; RECENT_MAX],
    next_recent: usize,
    /// A message to be copied to `page` before the entry is sent.
    pub message: [u64; TEMPLATE_WORDS],
    /// Length of `message` in words.
    pub message_len: usize,
    tokens: [u64; 4],
}

impl<'a> Generator<'a> {
    /// A generator for the thread whose messages lie at `page`.
    pub fn new(seed: u64, world: &'a World, page: u64, ring: u64) -> Generator<'a> {
        Generator {
            random: Random::new(seed),
            world,
            page,
            ring,
            recent: [0; RECENT_MAX],
            next_recent: 0,
            message: [0; TEMPLATE_WORDS],
            message_len: 0,
            tokens: [0; 4],
        }
    }

    /// The page that the message is copied to.
    pub fn page(&self) -> u64 {
        self.page
    }

    /// Remembers a capability that came with a completion; returns an older one, which shall be released for it.
    pub fn remember(&mut self, cap: u32) -> u32 {
        let old = core::mem::replace(&mut self.recent[self.next_recent], cap);
        self.next_recent = (self.next_recent + 1) % RECENT_MAX;
        old
    }

    /// Remembers the token of a call that was received.
    pub fn remember_token(&mut self, token: u64) {
        self.tokens[(token % 4) as usize] = token;
    }

    fn chance(&mut self, one_of: u64) -> bool {
        self.random.below(one_of) == 0
    }

    /// The `user_data` of an operation: its number, and one of a few tags, so that cancelling often hits.
    pub fn user_data(&mut self, op: Op) -> u64 {
        0xf0 << 8 | op as u64 | self.random.below(6) << 16
    }

    /// The operation that [`Generator::user_data`] was made for.
    pub fn op_of(user_data: u64) -> Option<usize> {
        let op = (user_data & 0xff) as usize;
        (user_data >> 8 & 0xff == 0xf0 && user_data >> 20 == 0 && op < Op::COUNT).then_some(op)
    }

    fn cap(&mut self, interface: Interface) -> u32 {
        let cap = self.any_cap(interface);
        // A message for another method could create a thread that begins at any address and ends the process: rare enough
        // to make progress.
        let makes_thread = interface != Interface::ThreadSpawner
            && self.world.known.contains(&(cap, Interface::ThreadSpawner as u16));
        if makes_thread && !self.chance(100) { 0 } else { cap }
    }

    fn any_cap(&mut self, interface: Interface) -> u32 {
        match self.random.below(40) {
            0 => self.random.word() as u32,
            1 => self.world.known[self.random.below(self.world.known_count as u64) as usize].0,
            2 | 3 => self.recent[self.random.below(RECENT_MAX as u64) as usize],
            4 => self.random.below(64) as u32 | 1 << 16,
            5 => self.world.revoked,
            6 => self.random.below(20) as u32,
            _ => {
                let known = &self.world.known[..self.world.known_count];
                let start = self.random.below(known.len() as u64) as usize;
                let found = (0..known.len())
                    .map(|at| known[(start + at) % known.len()])
                    .find(|(_, kind)| *kind == interface as u16);
                found.map_or(0, |(cap, _)| cap)
            }
        }
    }

    /// An address: of mapped memory, unmapped memory, memory of the kernel, or one that no machine has.
    fn pointer(&mut self) -> u64 {
        let offset = self.random.below(PAGE);
        match self.random.below(48) {
            0 => 0,
            1 => offset,
            2 => self.random.word(),
            3 => ARENA + ARENA_PAGES * PAGE - self.random.below(64),
            4 => ARENA + ARENA_PAGES * PAGE + offset,
            5 => READ_ONLY + offset,
            6 => self.world.text + offset,
            7 => self.ring + offset,
            // The first thread's ring is chosen rarely, because that thread starts the others.
            8 if self.chance(30) => RING_VADDR + offset,
            8 => self.random.one_of(&[BOOTINFO_VADDR, CAPSET_VADDR]) + offset,
            9 => 0xffff_8000_0000_0000 + (self.random.word() & 0xfff_ffff),
            10 => 0xffff_ffff_8010_0000 + offset,
            11 => u64::MAX - self.random.below(16),
            12 => USER_END_VADDR - self.random.below(16),
            13 => 0x0000_8000_0000_0000 + offset,
            14 => ARENA + self.random.below(ARENA_PAGES * PAGE),
            15 => PLACES + self.random.below(PLACE_COUNT) * PLACE_BYTES,
            // Across the boundary of two pages.
            16..=19 => ARENA + (2 + self.random.below(ARENA_PAGES - 3)) * PAGE - 1 - self.random.below(200),
            _ => ARENA + (2 + self.random.below(ARENA_PAGES - 2)) * PAGE + (offset & 0xe00),
        }
    }

    fn length(&mut self) -> u32 {
        match self.random.below(16) {
            0 => self.random.word() as u32,
            1 => MAX_MESSAGE_BYTES as u32 + self.random.below(3) as u32 - 1,
            2 => u32::MAX,
            3 => 0,
            4 => self.random.below(4096) as u32,
            _ => 8 * self.random.below(40) as u32,
        }
    }

    /// A number that a programmer may not have thought of.
    fn word(&mut self) -> u64 {
        match self.random.below(14) {
            0 => self.random.word(),
            1 => u64::MAX - self.random.below(4096),
            2 => 1 << self.random.one_of(&[0, 3, 11, 12, 13, 31, 32, 40, 46, 47, 48, 62, 63]),
            3 => self.random.below(8) * PAGE,
            4 | 5 => PLACES + self.random.below(PLACE_COUNT) * PLACE_BYTES + self.random.below(4) * PAGE,
            6 => self.pointer(),
            7 => self.random.below(256) << self.random.one_of(&[0, 1, 8, 40, 48, 55]),
            8 => i64::MIN as u64,
            // Large sizes are rare, because the other processes need memory, too.
            9 if self.chance(200) => self.random.below(1 << 14) * PAGE,
            9 => self.random.below(48) * PAGE,
            _ => self.random.below(5),
        }
    }

    fn entry(&mut self, op: Op) -> Sqe {
        Sqe { op: op as u8, version: SQE_VERSION, user_data: self.user_data(op), ..Sqe::default() }
    }

    /// The next entry.
    pub fn next_entry(&mut self) -> Sqe {
        self.message_len = 0;
        let mut sqe = match self.random.below(100) {
            0..=9 => return self.nonsense(),
            10..=21 => self.withdrawal(),
            22..=43 => self.method(),
            44..=53 => self.endpoint_call(),
            54..=61 => self.receive(),
            62..=69 => self.answer(),
            70..=75 => self.park(),
            76..=81 => self.unpark(),
            82..=84 => self.sleep(),
            85 => self.console(),
            86..=89 => self.copy(),
            90..=93 => self.release(),
            94..=95 => self.revoke(),
            96 => self.entry(Op::Yield),
            97 => Sqe { flags: self.random.one_of(&[0, flags::QUIET]), ..self.entry(Op::Nop) },
            _ => self.entry(Op::Nop),
        };
        if self.chance(24) {
            self.spoil(&mut sqe);
        }
        sqe
    }

    /// Random bits.
    fn nonsense(&mut self) -> Sqe {
        let mut word = || self.random.word();
        let mut sqe = Sqe {
            op: (word() % 32) as u8,
            version: SQE_VERSION,
            flags: word() as u16,
            cap: word() as u32,
            user_data: word(),
            method: word() as u32,
            len: word() as u32,
            addr: word(),
            result_addr: word(),
            result_len: word() as u32,
            xfer: word() as u32,
            arg0: word(),
            arg1: word(),
        };
        // Half of the entries have flags and a capability that let them get further.
        if self.chance(2) {
            sqe.flags = 0;
            let interface = self.random.one_of(&Interface::ALL);
            sqe.cap = self.cap(interface);
        }
        if self.chance(2) {
            let op = sqe.op as usize;
            sqe.user_data = if op < Op::COUNT { self.user_data(Op::ALL[op]) } else { 0xf0ff };
        }
        if sqe.op == Op::Write as u8 {
            sqe.addr = PRINTED;
            sqe.len %= 8;
        }
        sqe
    }

    /// Changes one field of a valid entry.
    fn spoil(&mut self, sqe: &mut Sqe) {
        match self.random.below(12) {
            0 => sqe.version = self.random.word() as u8,
            1 => sqe.flags ^= 1 << self.random.below(16),
            2 => sqe.cap = self.random.word() as u32,
            3 => sqe.method = self.random.word() as u32,
            4 => sqe.method = self.random.below(8) as u32,
            5 => sqe.len = self.length(),
            6 => sqe.addr = self.pointer(),
            7 => sqe.result_addr = self.pointer(),
            8 => sqe.result_len = self.length(),
            9 => sqe.xfer = self.random.word() as u32,
            10 => sqe.arg0 = self.word(),
            _ => sqe.arg1 = self.word(),
        }
        if sqe.op == Op::Write as u8 {
            sqe.addr =
                self.random.one_of(&[PRINTED, PRINTED + PAGE - 2, 0, u64::MAX - 3, USER_END_VADDR - 1]);
            sqe.len = if self.chance(8) { 1025 } else { sqe.len % 8 };
        }
    }

    /// Cancels an operation that may be under way.
    pub fn withdrawal(&mut self) -> Sqe {
        let slow = [Op::Call, Op::Recv, Op::Park, Op::Sleep, Op::Read, Op::Recv, Op::Call];
        let op = self.random.one_of(&slow);
        Sqe { arg0: self.user_data(op), ..self.entry(Op::Cancel) }
    }

    /// A release of `cap`.
    pub fn release_of(&mut self, cap: u32) -> Sqe {
        Sqe { cap, ..self.entry(Op::Release) }
    }

    fn result(&mut self, sqe: &mut Sqe) {
        sqe.result_addr = self.pointer();
        sqe.result_len = if self.chance(10) { self.length() } else { 256 << self.random.below(4) };
        sqe.result_len =
            if self.chance(40) { sqe.result_len } else { sqe.result_len.min(MAX_MESSAGE_BYTES as u32) };
    }

    /// A call of a kernel object's method.
    fn method(&mut self) -> Sqe {
        let mut sqe = self.entry(Op::Call);
        self.result(&mut sqe);
        if self.chance(300) {
            sqe.cap = self.cap(Interface::ProcessSpawner);
            self.message_len = spawn_message(&mut self.message);
        } else if self.chance(10) {
            self.context_method(&mut sqe);
            return sqe;
        } else if self.chance(3) {
            self.plain_method(&mut sqe);
            return sqe;
        } else {
            let at = self.random.below(TEMPLATES_MAX as u64) as usize;
            let Some(template) = self.world.templates[at] else {
                self.plain_method(&mut sqe);
                return sqe;
            };
            if template.interface == Interface::SystemInfo && !self.chance(8) {
                // These are long lists, which take long to produce.
                self.plain_method(&mut sqe);
                return sqe;
            }
            self.message = template.words;
            self.message_len = template.len;
            sqe.method = template.method;
            sqe.cap = self.cap(template.interface);
            if template.interface == Interface::ThreadControl && template.method == 2 && !self.chance(50) {
                sqe.method = 0;
            }
        }
        let makes_thread = sqe.cap & 0xffff != 0 && self.message[1] == self.world.text;
        if !makes_thread || self.chance(600) {
            self.spoil_message();
        } else if self.chance(2) {
            // Values that are refused: a thread that begins at a random address would end the whole process.
            let word = 1 + self.random.below(4) as usize;
            self.message[word] = self.random.one_of(&[u64::MAX - 7, 1 << 47, USER_END_VADDR, ARENA + 8]);
            self.message[1] = if word == 1 { u64::MAX << 40 } else { self.message[1] };
        }
        (sqe.addr, sqe.len) = (self.page, 8 * self.message_len as u32);
        if self.chance(30) && !makes_thread {
            sqe.addr = self.pointer();
        }
        if self.chance(30) {
            sqe.len = self.length();
        }
        sqe
    }

    /// A method without parameters.
    fn plain_method(&mut self, sqe: &mut Sqe) {
        let all = [
            (Interface::Timer, 0),
            (Interface::ThreadControl, 0),
            (Interface::ThreadHandle, 0),
            (Interface::ThreadHandle, 1),
            (Interface::ProcessHandle, 0),
            (Interface::ProcessHandle, 2),
            (Interface::ProcessHandle, 3),
            (Interface::MemoryObject, 3),
            (Interface::UserSession, 0),
            (Interface::UserSession, 1),
            (Interface::Factory, 0),
            (Interface::SchedulingPolicy, 2),
            (Interface::Console, 0),
        ];
        let (interface, method) =
            if self.chance(4) { self.random.one_of(&contexts::PLAIN) } else { self.random.one_of(&all) };
        sqe.method = method;
        sqe.cap = match interface {
            // Handles come from completions.
            Interface::ThreadHandle | Interface::ProcessHandle => {
                self.recent[self.random.below(RECENT_MAX as u64) as usize]
            }
            Interface::SchedulingContext => self.context(),
            _ => self.cap(interface),
        };
        if interface == Interface::ProcessHandle && self.chance(4) {
            sqe.method = 1;
        }
    }

    /// A context: one that existed at the start, or one that may have been created since.
    fn context(&mut self) -> u32 {
        if self.chance(2) {
            self.cap(Interface::SchedulingContext)
        } else {
            self.recent[self.random.below(RECENT_MAX as u64) as usize]
        }
    }

    /// A method of a context that takes a message.
    fn context_method(&mut self, sqe: &mut Sqe) {
        sqe.cap = self.context();
        let endpoint = self.cap(Interface::Endpoint);
        let thread = self.recent[self.random.below(RECENT_MAX as u64) as usize];
        (sqe.method, self.message_len) =
            contexts::message(&mut self.random, &mut self.message, endpoint, thread);
        // A corrupted binding is mostly one that stops the thread whenever it has no context: rare enough to make
        // progress.
        let seldom = if contexts::is_binding(sqe.method) { 100 } else { 4 };
        if self.chance(seldom) {
            self.spoil_message();
        }
        (sqe.addr, sqe.len) = (self.page, 8 * self.message_len as u32);
    }

    /// Changes words of the message, now and then the pointers in it.
    fn spoil_message(&mut self) {
        let len = self.message_len as u64;
        if len < 2 {
            return;
        }
        for _ in 0..self.random.below(4) {
            let at = 1 + self.random.below(len - 1) as usize;
            self.message[at] = self.word();
        }
        match self.random.below(24) {
            0 => self.message[0] = self.random.word(),
            1 => self.message[0] ^= 1 << self.random.below(64),
            2 => self.message[self.random.below(len) as usize] ^= 1 << self.random.below(64),
            3 => self.message_len = self.random.below(len) as usize,
            4 => self.message_len = TEMPLATE_WORDS,
            _ => {}
        }
    }

    fn endpoint_call(&mut self) -> Sqe {
        let mut sqe = self.entry(Op::Call);
        sqe.cap = if self.chance(6) { self.world.dead_end } else { self.cap(Interface::Endpoint) };
        sqe.method = self.random.below(3) as u32;
        self.result(&mut sqe);
        self.payload(&mut sqe);
        sqe
    }

    /// Adds a message of which only the server knows the meaning, and perhaps a capability.
    fn payload(&mut self, sqe: &mut Sqe) {
        if self.chance(2) {
            sqe.flags |= flags::INLINE;
            (sqe.arg0, sqe.arg1) = (self.random.word(), self.random.word());
        } else {
            (sqe.addr, sqe.len) = (self.pointer(), self.length());
        }
        if self.chance(6) {
            let interface =
                self.random.one_of(&[Interface::MemoryObject, Interface::Endpoint, Interface::Timer]);
            sqe.xfer = self.cap(interface);
            if self.chance(8) {
                sqe.flags |= flags::MOVE;
                sqe.xfer = self.recent[self.random.below(RECENT_MAX as u64) as usize];
            }
        }
    }

    fn receive(&mut self) -> Sqe {
        let mut sqe = Sqe { cap: self.cap(Interface::Endpoint), ..self.entry(Op::Recv) };
        self.result(&mut sqe);
        sqe
    }

    fn answer(&mut self) -> Sqe {
        let token = self.tokens[self.random.below(4) as usize];
        let result_addr = if self.chance(5) { self.random.word() } else { token };
        let method = self.random.one_of(&[0, 0, 0, 1, 2, 3, 4, 5, 6, u32::MAX]);
        let mut sqe =
            Sqe { cap: self.cap(Interface::Endpoint), result_addr, method, ..self.entry(Op::Return) };
        self.payload(&mut sqe);
        if self.chance(3) {
            sqe.flags |= flags::QUIET;
        }
        sqe
    }

    fn park(&mut self) -> Sqe {
        let addr = if self.chance(4) { self.pointer() } else { ARENA + 4 * self.random.below(8) };
        let (arg0, arg1) =
            (self.random.below(2), self.random.one_of(&[0, 1000, 50_000, 2_000_000, u64::MAX]));
        Sqe { cap: self.cap(Interface::ParkSpace), addr, arg0, arg1, ..self.entry(Op::Park) }
    }

    fn unpark(&mut self) -> Sqe {
        let addr = if self.chance(6) { self.pointer() } else { ARENA + 4 * self.random.below(8) };
        let arg0 = if self.chance(8) { self.word() } else { self.random.below(4) };
        let flags = self.random.one_of(&[0, flags::QUIET]);
        Sqe { cap: self.cap(Interface::ParkSpace), addr, arg0, flags, ..self.entry(Op::Unpark) }
    }

    fn sleep(&mut self) -> Sqe {
        let arg0 = if self.chance(6) { self.word() } else { self.random.below(300_000) };
        Sqe { cap: self.cap(Interface::Timer), arg0, ..self.entry(Op::Sleep) }
    }

    fn console(&mut self) -> Sqe {
        if self.chance(3) {
            let mut sqe = Sqe { cap: self.cap(Interface::Console), ..self.entry(Op::Read) };
            self.result(&mut sqe);
            sqe.result_len = self.random.one_of(&[0, 1, 64, 1024, 1025]);
            return sqe;
        }
        let addr = self.random.one_of(&[PRINTED, PRINTED + PAGE - 2, 0, ARENA - 1, 0xffff_ffff_8010_0000]);
        let len = if self.chance(40) { 1 } else { 0 };
        let len = if addr == PRINTED { len } else { 4 };
        Sqe { cap: self.cap(Interface::Console), addr, len, ..self.entry(Op::Write) }
    }

    fn copy(&mut self) -> Sqe {
        let interface = self.random.one_of(&Interface::ALL);
        let arg0 = if self.chance(6) { self.word() } else { self.random.below(32) };
        let arg1 = if self.chance(4) { self.word() } else { 0 };
        Sqe { cap: self.cap(interface), arg0, arg1, ..self.entry(Op::Copy) }
    }

    fn release(&mut self) -> Sqe {
        // The capabilities that the process started with are rarely released: without them there is little to fuzz.
        let cap = match self.random.below(400) {
            0 => self.cap(Interface::Endpoint),
            1..=40 => self.random.word() as u32,
            _ => self.recent[self.random.below(RECENT_MAX as u64) as usize],
        };
        let flags = self.random.one_of(&[0, flags::QUIET]);
        Sqe { flags, ..self.release_of(cap) }
    }

    fn revoke(&mut self) -> Sqe {
        let cap = match self.random.below(60) {
            0 => self.cap(Interface::MemoryObject),
            1..=20 => self.cap(Interface::Timer),
            _ => self.recent[self.random.below(RECENT_MAX as u64) as usize],
        };
        Sqe { cap, ..self.entry(Op::Revoke) }
    }
}
