//! Messages to a reactor thread, from any thread.

use super::bell::Bell;
use super::publication::{CROWDED_BYTES, Kind, POSTED_BYTES_MAX, Publication};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A message from any thread to a reactor.
#[derive(Clone, Debug)]
pub enum Message {
    /// Check the settings, `Watch::stopping`, and paused clients again.
    Wake,
    /// There was a commit, or a snapshot ended: look at the replies that wait for it.
    Committed,
    /// Close this client without sending another byte (`CLIENT KILL`).
    Close { client: u64 },
    /// The request of this client, which waits for elements: show it again.
    ShowAgain { client: u64 },
    /// Append these bytes to this client's output (`MONITOR` lines, pushes). Dropped if the client
    /// is gone. The bytes of all such posts for one client reach the thread as one message.
    Push { client: u64, bytes: Vec<u8> },
    /// Append this to the outputs of its subscribers.
    Publish(Arc<Publication>),
    /// Messages for subscribers were dropped, because too many waited: close those subscribers.
    PublicationsLost(Lost),
    /// Keys that this client has read have changed.
    Invalidate { client: u64, what: Invalid },
    /// As `Invalidate`, for the client to which another redirects its invalidations.
    Redirected { client: u64, what: Invalid },
}

/// Keys that are to be read again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalid {
    Keys(Vec<Invalidation>),
    All,
}

/// Keys that were changed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalidation {
    /// Whether the keys begin with a prefix of the client, which may not have read them.
    pub is_broadcast: bool,
    pub keys: Vec<Arc<[u8]>>,
}

impl From<Invalidation> for Invalid {
    fn from(one: Invalidation) -> Invalid {
        Invalid::Keys(vec![one])
    }
}

impl Invalid {
    fn bytes(&self) -> usize {
        let bytes = |one: &Invalidation| {
            let keys = one.keys.iter().map(|key| INVALID_KEY_BYTES + key.len());
            INVALID_KEY_BYTES + keys.sum::<usize>()
        };
        match self {
            Invalid::Keys(all) => all.iter().map(bytes).sum(),
            Invalid::All => 0,
        }
    }
}

/// Memory of a key in a mailbox beside its name.
const INVALID_KEY_BYTES: usize = 64;
/// Maximum bytes of the keys in a mailbox. Above it a client gets an invalidation of all keys.
const INVALID_BYTES_MAX: usize = 16 << 20;

/// Invalidations by client, each with the bytes of its keys.
#[derive(Default)]
struct Invalids {
    clients: BTreeMap<u64, (usize, Invalid)>,
    bytes: usize,
}

impl Invalids {
    fn add(&mut self, client: u64, what: Invalid) {
        let bytes = what.bytes();
        let fits = self.bytes + bytes <= INVALID_BYTES_MAX;
        let nothing = || (0, Invalid::Keys(Vec::new()));
        let (known_bytes, known) = self.clients.entry(client).or_insert_with(nothing);
        match (known, what) {
            (Invalid::Keys(all), Invalid::Keys(more)) if fits => {
                all.extend(more);
                *known_bytes += bytes;
                self.bytes += bytes;
            }
            (known, _) => {
                *known = Invalid::All;
                self.bytes -= std::mem::take(known_bytes);
            }
        }
    }

    fn take(&mut self) -> impl Iterator<Item = (u64, Invalid)> + use<> {
        let all = std::mem::take(self).clients.into_iter();
        all.map(|(client, (_, what))| (client, what))
    }
}

/// The channels and patterns of messages that were dropped.
#[derive(Clone, Debug, Default)]
pub struct Lost {
    names: BTreeSet<(Kind, Box<[u8]>)>,
    /// Bytes of the names.
    bytes: usize,
    /// Whether there are too many names: messages of any name may have been dropped.
    all: bool,
}

impl Lost {
    fn add(&mut self, publication: &Publication) {
        self.add_name(publication.kind, &publication.channel);
        for pattern in &publication.patterns {
            self.add_name(Kind::Pattern, pattern);
        }
    }

    fn add_name(&mut self, kind: Kind, name: &[u8]) {
        if self.all || self.bytes + name.len() + LOST_NAME_BYTES > LOST_BYTES_MAX {
            *self = Lost {
                all: true,
                ..Lost::default()
            };
        } else if self.names.insert((kind, name.into())) {
            self.bytes += name.len() + LOST_NAME_BYTES;
        }
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty() && !self.all
    }

    /// The names; `None`: messages of any name may have been dropped.
    pub fn names(&self) -> Option<impl Iterator<Item = (Kind, &[u8])>> {
        let names = self.names.iter().map(|(kind, name)| (*kind, &**name));
        (!self.all).then_some(names)
    }
}

/// Maximum bytes of the names in [`Lost`], and the bytes that a name counts beside its own.
const LOST_BYTES_MAX: usize = 1 << 20;
const LOST_NAME_BYTES: usize = 64;

/// Maximum bytes in a mailbox that wait to be appended to clients' outputs. Without a limit,
/// `MONITOR` would fill memory while the thread is busy for long.
const PUSHED_BYTES_MAX: usize = 16 << 20;

#[derive(Default)]
struct Queue {
    wake: bool,
    committed: bool,
    /// Clients to be closed. Many posts for one client take the memory of one.
    closes: BTreeSet<u64>,
    /// Clients that wait for elements and must look again, in order. Each client is there at most
    /// once for each of its keys, and once for CLIENT UNBLOCK.
    shown_again: Vec<u64>,
    /// Bytes to be appended, by client: a thread appends all bytes of a client at once. When each
    /// line of `MONITOR` was a message with a system call of its own, a thread served no other
    /// client for seconds.
    pushes: BTreeMap<u64, Vec<u8>>,
    /// Total bytes of `pushes`.
    pushed_bytes: usize,
    publications: Vec<Arc<Publication>>,
    lost: Lost,
    invalids: Invalids,
    redirected: Invalids,
}

impl Queue {
    /// Adds a message. `published_bytes`: the bytes of the publications in the queue.
    fn add(&mut self, message: Message, published_bytes: &AtomicUsize) {
        match message {
            Message::Publish(publication) => {
                // The lock is held: only readers of `is_crowded` see a value in between.
                let bytes = published_bytes.load(Ordering::Relaxed) + publication.bytes();
                if bytes > POSTED_BYTES_MAX && !self.publications.is_empty() {
                    return self.lost.add(&publication);
                }
                published_bytes.store(bytes, Ordering::Relaxed);
                self.publications.push(publication);
            }
            Message::PublicationsLost(_) => {} // only `take` makes one
            Message::Push { client, bytes } => {
                self.pushed_bytes += bytes.len();
                self.pushes.entry(client).or_default().extend(bytes);
            }
            Message::Wake => self.wake = true,
            Message::Committed => self.committed = true,
            Message::Close { client } => {
                self.closes.insert(client);
            }
            Message::ShowAgain { client } => self.shown_again.push(client),
            Message::Invalidate { client, what } => self.invalids.add(client, what),
            Message::Redirected { client, what } => self.redirected.add(client, what),
        }
    }

    fn take(&mut self, into: &mut Vec<Message>, published_bytes: &AtomicUsize) {
        self.pushed_bytes = 0;
        published_bytes.store(0, Ordering::Relaxed);
        let pushes = std::mem::take(&mut self.pushes).into_iter();
        into.extend(pushes.map(|(client, bytes)| Message::Push { client, bytes }));
        let closes = std::mem::take(&mut self.closes).into_iter();
        into.extend(closes.map(|client| Message::Close { client }));
        let shown_again = std::mem::take(&mut self.shown_again).into_iter();
        into.extend(shown_again.map(|client| Message::ShowAgain { client }));
        into.extend(std::mem::take(&mut self.committed).then_some(Message::Committed));
        into.extend(std::mem::take(&mut self.wake).then_some(Message::Wake));
        if !self.lost.is_empty() {
            let lost = std::mem::take(&mut self.lost);
            into.push(Message::PublicationsLost(lost));
        }
        let invalids = self.invalids.take();
        into.extend(invalids.map(|(client, what)| Message::Invalidate { client, what }));
        let redirected = self.redirected.take();
        into.extend(redirected.map(|(client, what)| Message::Redirected { client, what }));
        // Publications come after `Wake`: a change of rights holds for the messages behind it.
        let publications = std::mem::take(&mut self.publications).into_iter();
        into.extend(publications.map(Message::Publish));
    }
}

/// A queue of messages, with a bell that wakes the sleeping thread.
pub struct Mailbox {
    queue: Mutex<Queue>,
    /// Whether there may be messages. Release in `post`, Acquire in `take`.
    pending: AtomicBool,
    bell: Arc<dyn Bell>,
    /// Bytes of the publications in the queue. Changes under its lock.
    published_bytes: AtomicUsize,
}

impl Mailbox {
    pub(crate) fn new(bell: Arc<dyn Bell>) -> Mailbox {
        Mailbox {
            queue: Mutex::default(),
            pending: AtomicBool::new(false),
            bell,
            published_bytes: AtomicUsize::new(0),
        }
    }

    /// Called by any thread. Blocks only for the time that another `post` or `take` needs.
    pub fn post(&self, message: Message) {
        let mut message = Some(message);
        let mut signals = false;
        for step in PostStep::ORDER {
            self.post_step(step, &mut message, &mut signals);
        }
    }

    /// Called by any thread: posts [`Message::Push`]. Returns false if too many bytes wait already:
    /// then the message is dropped.
    #[must_use]
    pub fn push(&self, client: u64, bytes: &[u8]) -> bool {
        let fits = self.lock().pushed_bytes + bytes.len() <= PUSHED_BYTES_MAX;
        if fits {
            self.post(Message::Push {
                client,
                bytes: bytes.to_vec(),
            });
        }
        fits
    }

    /// Whether so many publications wait that their publishers should wait.
    pub(crate) fn is_crowded(&self) -> bool {
        self.published_bytes.load(Ordering::Relaxed) > CROWDED_BYTES
    }

    /// Whether there are messages to take.
    #[inline]
    pub fn has_messages(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Posts without a system call. Called by the owning thread, which looks at its mailbox before
    /// it sleeps.
    pub fn post_own(&self, message: Message) {
        self.lock().add(message, &self.published_bytes);
    }

    /// Called by the owning thread: takes all messages, without a system call. The signal of an
    /// earlier post stays, and wakes the thread once in vain.
    pub fn take_own(&self, into: &mut Vec<Message>) {
        self.take_step(TakeStep::Collect, into);
    }

    /// Called by the owning thread: the publications in the queue; they stay.
    pub(crate) fn publications(&self) -> Vec<Arc<Publication>> {
        match self.published_bytes.load(Ordering::Relaxed) {
            0 => Vec::new(),
            _ => self.lock().publications.clone(),
        }
    }

    /// Called by the owning thread: takes all messages, pushes first, publications in order. Every
    /// other message comes once, however often it was posted.
    pub fn take(&self, into: &mut Vec<Message>) {
        for step in TakeStep::ORDER {
            self.take_step(step, into);
        }
    }

    fn post_step(&self, step: PostStep, message: &mut Option<Message>, signals: &mut bool) {
        match step {
            PostStep::Push => {
                if let Some(message) = message.take() {
                    self.lock().add(message, &self.published_bytes);
                }
            }
            PostStep::Mark => *signals = !self.pending.swap(true, Ordering::AcqRel),
            PostStep::Signal if *signals => self.bell.ring(),
            PostStep::Signal => {}
        }
    }

    fn take_step(&self, step: TakeStep, into: &mut Vec<Message>) {
        match step {
            TakeStep::Acknowledge => self.bell.quiet(),
            TakeStep::Unmark => {
                self.pending.swap(false, Ordering::AcqRel);
            }
            TakeStep::Collect => {
                self.lock().take(into, &self.published_bytes);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The steps of [`Mailbox::post`]; each is indivisible.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PostStep {
    Push,
    Mark,
    /// Signals, but only if the mark was not set before.
    Signal,
}

impl PostStep {
    const ORDER: [PostStep; 3] = [PostStep::Push, PostStep::Mark, PostStep::Signal];
}

/// The steps of [`Mailbox::take`].
#[derive(Clone, Copy, Debug, PartialEq)]
enum TakeStep {
    Acknowledge,
    Unmark,
    Collect,
}

impl TakeStep {
    /// A post before the unmarking does not signal, but its message is collected afterwards. A post
    /// after the unmarking signals, and its signal stays, because the acknowledging came before.
    const ORDER: [TakeStep; 3] = [TakeStep::Acknowledge, TakeStep::Unmark, TakeStep::Collect];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::bell::Silent;
    use std::sync::Arc;

    /// Rings until it is quiet, as an eventfd.
    #[derive(Default)]
    struct Rings(AtomicBool);

    impl Bell for Rings {
        fn ring(&self) {
            self.0.store(true, Ordering::SeqCst);
        }

        fn quiet(&self) {
            self.0.store(false, Ordering::SeqCst);
        }
    }

    impl Rings {
        fn wakes(&self) -> bool {
            self.0.load(Ordering::SeqCst)
        }
    }

    fn mailbox() -> Mailbox {
        Mailbox::new(Arc::new(Silent))
    }

    /// A `take` could once consume the signal of a post while `pending` stayed set. Then no later
    /// post woke the thread, and a stop waited for ever. Here two posts and a take run in every
    /// possible order of their steps.
    #[test]
    fn no_interleaving_loses_a_message_or_a_wake_up() {
        let mut schedules = vec![(Vec::new(), [0usize; 3])];
        for _ in 0..9 {
            schedules = schedules
                .into_iter()
                .flat_map(|(schedule, done)| {
                    (0..3)
                        .filter(move |actor| done[*actor] < 3)
                        .map(move |actor| {
                            let (mut schedule, mut done) = (schedule.clone(), done);
                            schedule.push(actor);
                            done[actor] += 1;
                            (schedule, done)
                        })
                })
                .collect();
        }
        assert_eq!(schedules.len(), 1680);
        for (schedule, _) in schedules {
            let bell = Arc::new(Rings::default());
            let mailbox = Mailbox::new(Arc::<Rings>::clone(&bell));
            let mut posts = [0, 1].map(|client| (Some(Message::Close { client }), false));
            let mut got = Vec::new();
            let mut done = [0; 3];
            for actor in &schedule {
                let step = done[*actor];
                done[*actor] += 1;
                match posts.get_mut(*actor) {
                    Some((message, signals)) => {
                        mailbox.post_step(PostStep::ORDER[step], message, signals);
                    }
                    None => mailbox.take_step(TakeStep::ORDER[step], &mut got),
                }
            }
            assert!(
                got.len() == 2 || bell.wakes(),
                "{schedule:?}: a message waits unseen"
            );
            mailbox.take(&mut got);
            assert_eq!(got.len(), 2, "{schedule:?}");
            mailbox.post(Message::Wake);
            assert!(bell.wakes(), "{schedule:?}: a later post does not wake");
        }
    }

    /// While a thread did not come back to its loop for long, `MONITOR` once filled memory with
    /// lines for its clients.
    #[test]
    fn what_waits_to_be_pushed_is_bounded() {
        let mailbox = mailbox();
        let line = vec![b'x'; 1 << 20];
        for n in 0..16 {
            assert!(mailbox.push(n % 2, &line));
        }
        assert!(!mailbox.push(1, &line));
        let mut got = Vec::new();
        mailbox.take(&mut got);
        assert_eq!(got.len(), 2, "one message per client");
        for message in got {
            assert!(matches!(message, Message::Push { bytes, .. } if bytes.len() == 8 << 20));
        }
        assert!(mailbox.push(1, &line), "there is room again");
    }

    #[test]
    fn too_many_invalid_keys_become_all_keys() {
        let mailbox = mailbox();
        let invalidate = |client, bytes| Message::Invalidate {
            client,
            what: Invalid::from(Invalidation {
                is_broadcast: false,
                keys: vec![vec![b'k'; bytes].into()],
            }),
        };
        let invalids = || {
            let taken = take(&mailbox).into_iter();
            taken.map(|message| match message {
                Message::Invalidate { client, what } => (client, what == Invalid::All),
                other => panic!("{other:?}"),
            })
        };
        for client in [1, 2, 2, 3, 3] {
            mailbox.post(invalidate(client, 4 << 20));
        }
        mailbox.post(invalidate(2, 10));
        let all: Vec<_> = invalids().collect();
        assert_eq!(all, [(1, false), (2, false), (3, true)]);
        mailbox.post(invalidate(3, 4 << 20));
        assert_eq!(invalids().collect::<Vec<_>>(), [(3, false)]);
    }

    fn publication(channel: &str, bytes: usize) -> Message {
        Message::Publish(Arc::new(Publication {
            kind: Kind::Channel,
            channel: channel.as_bytes().into(),
            payload: vec![0; bytes].into(),
            patterns: vec![Arc::from(&b"*"[..])],
            number: 0,
        }))
    }

    fn take(mailbox: &Mailbox) -> Vec<Message> {
        let mut got = Vec::new();
        mailbox.take(&mut got);
        got
    }

    /// One message that was longer than the bound, or one command with many events, once closed
    /// all subscribers of a thread.
    #[test]
    fn lost_messages_have_names_and_one_message_is_never_too_long() {
        let mailbox = mailbox();
        mailbox.post(publication("long", POSTED_BYTES_MAX + 1));
        mailbox.post(publication("lost", 1));
        let got = take(&mailbox);
        let [Message::PublicationsLost(lost), Message::Publish(long)] = &got[..] else {
            panic!("{} messages", got.len());
        };
        assert_eq!(&*long.channel, b"long");
        let names: Vec<_> = lost.names().expect("few names").collect();
        assert_eq!(
            names,
            [(Kind::Channel, &b"lost"[..]), (Kind::Pattern, &b"*"[..])]
        );
        mailbox.post(publication("long", POSTED_BYTES_MAX));
        for n in 0..LOST_BYTES_MAX / LOST_NAME_BYTES {
            mailbox.post(publication(&n.to_string(), 1));
        }
        let got = take(&mailbox);
        assert!(matches!(&got[0], Message::PublicationsLost(lost) if lost.names().is_none()));
        mailbox.post(publication("short", 1));
        assert_eq!(take(&mailbox).len(), 1, "nothing is lost any more");
    }

    #[test]
    fn messages_of_many_threads_arrive_once_and_in_order() {
        const EACH: u64 = 10_000;
        let bell = Arc::new(Rings::default());
        let mailbox = Arc::new(Mailbox::new(Arc::<Rings>::clone(&bell)));
        for poster in 0..4 {
            let mailbox = Arc::clone(&mailbox);
            std::thread::spawn(move || {
                for n in 0..EACH {
                    let client = poster * EACH + n;
                    mailbox.post(Message::Close { client });
                }
            });
        }
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(300);
        let (mut got, mut next) = (Vec::new(), [0; 4]);
        while next != [EACH; 4] {
            assert!(std::time::Instant::now() < deadline, "{next:?}");
            if bell.wakes() {
                mailbox.take(&mut got);
            }
            for message in got.drain(..) {
                let Message::Close { client } = message else {
                    panic!("{message:?}");
                };
                let next = &mut next[(client / EACH) as usize];
                assert_eq!(client % EACH, *next);
                *next += 1;
            }
        }
    }
}
