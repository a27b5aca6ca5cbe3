//! Publish and subscribe: SUBSCRIBE and its relatives, PUBLISH, PUBSUB.
//!
//! A message leaves with the reply of its PUBLISH (`reply::effects`), and the number in the reply
//! is filled in then.

use crate::command::context::{Context, Done, Failure, YIELDS};
use crate::command::row::*;
use crate::command::walk::compiled;
use crate::membership::outbox::MESSAGE_BYTES_MAX;
use crate::reply::effects::NO_RECEIVERS;
use crate::state::Shared;
use crate::state::client::Client;
use crate::state::pubsub::subscribers::{Ended, SUBSCRIPTIONS_BYTES_MAX, write_message};
use crate::state::thread::Thread;
use crate::threads::publication::{Kind, Publication};
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::resp::Encoder;
use std::collections::HashMap;
use std::sync::Arc;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("publish", 3, LOADING | STALE | FAST | MAY_REPLICATE | WITH_DATA | PUBLISHES,
        doc(Topic::PubSub, "2.0.0", "O(N+M)", "Sends a message to the subscribers of a channel."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(publish))
            .differs("The message leaves when the writes before it are as durable as their replies demand, behind the reply.").names(Names::Channel),
    row("subscribe", -2, NOSCRIPT | LOADING | STALE | SUBSCRIBED, doc(Topic::PubSub, "2.0.0", "O(N)", "Subscribes to channels."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(subscribe))
            .differs("The subscriptions of one client have 64 MiB together.").names(Names::Channels),
    row("unsubscribe", -1, NOSCRIPT | LOADING | STALE | SUBSCRIBED, doc(Topic::PubSub, "2.0.0", "O(N)", "Ends subscriptions to channels."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(unsubscribe)),
    row("psubscribe", -2, NOSCRIPT | LOADING | STALE | SUBSCRIBED,
        doc(Topic::PubSub, "2.0.0", "O(N)", "Subscribes to all channels that match patterns."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(psubscribe))
            .differs("Patterns have 1,024 bytes at most.").names(Names::Patterns),
    row("punsubscribe", -1, NOSCRIPT | LOADING | STALE | SUBSCRIBED, doc(Topic::PubSub, "2.0.0", "O(N)", "Ends subscriptions to patterns."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(punsubscribe)),
    row("spublish", 3, LOADING | STALE | FAST | MAY_REPLICATE,
        doc(Topic::PubSub, "7.0.0", "O(N)", "Sends a message to the subscribers of a shard channel."),
        Keys::one(CHANNEL), Effect::Acts, Secrets::None, Run::Plain(spublish)).names(Names::Channel),
    row("ssubscribe", -2, NOSCRIPT | LOADING | STALE | SUBSCRIBED, doc(Topic::PubSub, "7.0.0", "O(N)", "Subscribes to shard channels."),
        Keys::all(CHANNEL), Effect::Acts, Secrets::None, Run::Plain(ssubscribe)).names(Names::Channels),
    row("sunsubscribe", -1, NOSCRIPT | LOADING | STALE | SUBSCRIBED, doc(Topic::PubSub, "7.0.0", "O(N)", "Ends subscriptions to shard channels."),
        Keys::all(CHANNEL), Effect::Acts, Secrets::None, Run::Plain(sunsubscribe)),
    container("pubsub", doc(Topic::PubSub, "2.8.0", "Depends on the subcommand", "A container for commands about subscriptions.")),
    row("pubsub|channels", -2, LOADING | STALE | REPORTS, doc(Topic::PubSub, "2.8.0", "O(N)", "Returns the channels that have subscribers."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(channels)),
    row("pubsub|help", 2, LOADING | STALE | TELLS, doc(Topic::PubSub, "6.2.0", "O(1)", "Lists the subcommands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(help)).without(PUBSUB),
    row("pubsub|numpat", 2, LOADING | STALE | TELLS, doc(Topic::PubSub, "2.8.0", "O(1)", "Returns the number of patterns that have subscribers."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(numpat)),
    row("pubsub|numsub", -2, LOADING | STALE | TELLS, doc(Topic::PubSub, "2.8.0", "O(N)", "Returns the numbers of subscribers of channels."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(numsub)),
    row("pubsub|shardchannels", -2, LOADING | STALE | REPORTS,
        doc(Topic::PubSub, "7.0.0", "O(N)", "Returns the shard channels that have subscribers."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(shardchannels)),
    row("pubsub|shardnumsub", -2, LOADING | STALE | TELLS,
        doc(Topic::PubSub, "7.0.0", "O(N)", "Returns the numbers of subscribers of shard channels."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(shardnumsub)),
];

/// The words of replies about subscriptions of a kind.
fn words(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Channel => ("subscribe", "unsubscribe"),
        Kind::Shard => ("ssubscribe", "sunsubscribe"),
        Kind::Pattern => ("psubscribe", "punsubscribe"),
    }
}

/// The number of subscriptions that replies about this kind show.
fn shown(ctx: &Context<'_>, kind: Kind) -> usize {
    let subscriptions = ctx.client.subscriptions().get();
    subscriptions.map_or(0, |subscriptions| subscriptions.shown(kind))
}

/// Writes the reply that a subscription began or ended. `name`: `None` if there was none to end.
fn write_change(ctx: &mut Context<'_>, word: &str, name: Option<&[u8]>, count: usize) {
    ctx.reply.set_confirms(!ctx.thread.exec.runs());
    let mut reply = ctx.reply.encoder();
    reply.push(3);
    reply.bulk(word.as_bytes());
    match name {
        Some(name) => reply.bulk(name),
        None => reply.null(),
    }
    reply.integer(count as i64);
}

/// Yields if effects of the client's earlier requests must leave first (effects::E4). Must be
/// called before anything is changed.
pub(crate) fn effects_first(ctx: &Context<'_>) -> Done {
    let waits = !ctx.thread.exec.runs() && !ctx.client.effects.is_empty();
    match waits && !has_bug(Bug::EffectsAreOvertaken) {
        true => Err(YIELDS),
        false => Ok(()),
    }
}

fn subscribe_to(ctx: &mut Context<'_>, kind: Kind) -> Done {
    effects_first(ctx)?;
    let names = ctx.request.args.skip(1);
    if kind == Kind::Pattern {
        for pattern in names {
            compiled(Some(pattern))?;
        }
    }
    let slot = ctx.client.record().slot;
    let subscriptions = ctx.client.subscriptions_mut().begin();
    if !subscriptions.has_room(kind, names.into_iter()) {
        ctx.client.settle_subscriptions();
        return Err(too_many());
    }
    for name in names {
        let subscriptions = ctx.client.subscriptions_mut().begin();
        if !subscriptions.has(kind, name) {
            let (registry, client) = (ctx.shared.pubsub(), (slot, &mut *subscriptions));
            ctx.thread.subscribers.add(registry, client, kind, name);
            ctx.client.subscriptions_mut().note_change();
        }
        let count = shown(ctx, kind);
        write_change(ctx, words(kind).0, Some(name), count);
    }
    ctx.client.settle_subscriptions();
    Ok(())
}

#[cold]
fn too_many() -> Failure {
    let limit = SUBSCRIPTIONS_BYTES_MAX;
    format!("ERR the subscriptions of this connection would take more than {limit} bytes").into()
}

fn unsubscribe_from(ctx: &mut Context<'_>, kind: Kind) -> Done {
    effects_first(ctx)?;
    let word = words(kind).1;
    if ctx.request.args.len() > 1 {
        end_each(ctx, kind, ctx.request.args.skip(1).into_iter());
    } else {
        let subscriptions = ctx.client.subscriptions().get();
        let names = subscriptions.map(|all| all.names(kind).cloned().collect::<Vec<_>>());
        let names = names.unwrap_or_default();
        end_each(ctx, kind, names.iter().map(|name| &**name));
        if names.is_empty() {
            let count = shown(ctx, kind);
            write_change(ctx, word, None, count);
        }
    }
    ctx.client.settle_subscriptions();
    Ok(())
}

/// Ends subscriptions, and writes a reply for each. Messages that were published before a
/// subscription ended, and still wait for this thread, come before its reply (registry::P2).
fn end_each<'n>(ctx: &mut Context<'_>, kind: Kind, names: impl Iterator<Item = &'n [u8]>) {
    let (slot, registry) = (ctx.client.record().slot, ctx.shared.pubsub());
    ctx.reply.set_confirms(!ctx.thread.exec.runs());
    let mut ends = Vec::new();
    for name in names {
        let ended = ctx
            .client
            .subscriptions_mut()
            .get_mut()
            .and_then(|subscriptions| {
                let client = (slot, &mut *subscriptions);
                ctx.thread.subscribers.remove(registry, client, kind, name)
            });
        if ended.is_some() {
            ctx.client.subscriptions_mut().note_change();
        }
        ends.push((name, ended, shown(ctx, kind)));
    }
    let messages = waiting_messages(ctx, kind, &ends);
    for (n, (name, _, count)) in ends.iter().enumerate() {
        for publication in messages.get(&n).into_iter().flatten() {
            let pattern = (kind == Kind::Pattern).then(|| Arc::from(*name));
            write_message(ctx.reply.encoder(), publication, pattern.as_ref());
            if ctx.reply.is_exceeded() {
                return; // the client is closed
            }
        }
        write_change(ctx, words(kind).1, Some(name), *count);
    }
}

/// The messages that wait for this thread and belong to subscriptions that have ended now, by the
/// position of the subscription in `ends`. The mailbox is locked only once, whatever the number of
/// subscriptions is.
fn waiting_messages(
    ctx: &Context<'_>,
    kind: Kind,
    ends: &[(&[u8], Option<Ended>, usize)],
) -> HashMap<usize, Vec<Arc<Publication>>> {
    let mut messages = HashMap::<_, Vec<_>>::new();
    let waiting = ctx.shared.threads[ctx.client.record().thread]
        .mailbox
        .publications();
    if waiting.is_empty() {
        return messages;
    }
    let ended = ends.iter().enumerate();
    let ended: HashMap<&[u8], _> = ended
        .filter_map(|(n, (name, ended, _))| Some((*name, (n, ended.clone()?))))
        .collect();
    for publication in &waiting {
        let mut note = |name: &[u8]| match ended.get(name) {
            Some((n, ended)) if ended.contains(&publication.number) => {
                messages
                    .entry(*n)
                    .or_default()
                    .push(Arc::clone(publication));
            }
            _ => {}
        };
        match kind {
            Kind::Pattern => publication.patterns.iter().for_each(|name| note(name)),
            kind if publication.kind == kind => note(&publication.channel),
            Kind::Channel | Kind::Shard => {}
        }
    }
    messages
}

/// Ends a client's subscription to a shard channel that another member serves now; returns the
/// message for the client.
pub(crate) fn end_left(
    shared: &Shared,
    thread: &mut Thread,
    client: &mut Client,
    channel: &[u8],
) -> Vec<u8> {
    let (mut told, slot) = (Vec::new(), client.record().slot);
    let Some(subscriptions) = client.subscriptions_mut().get_mut() else {
        return told;
    };
    let who = (slot, &mut *subscriptions);
    thread
        .subscribers
        .remove(shared.pubsub(), who, Kind::Shard, channel);
    let count = subscriptions.shown(Kind::Shard);
    let mut push = Encoder::new(&mut told, client.protocol());
    push.push(3);
    push.bulk(words(Kind::Shard).1.as_bytes());
    push.bulk(channel);
    push.integer(count as i64);
    client.settle_subscriptions();
    told
}

/// Whether the user of a client still has the right to all subscriptions of the client.
pub fn may_keep_subscriptions(client: &Client, shared: &Shared) -> bool {
    if client.subscriptions().is_empty() || client.login().user().is_none() {
        return true;
    }
    let user = client.login().present_user(shared.acl());
    user.is_some_and(|user| client.subscriptions().are_allowed_to(&user))
}

/// Ends all subscriptions without a reply, for RESET.
pub(crate) fn end_all(ctx: &mut Context<'_>) {
    let slot = ctx.client.record().slot;
    if let Some(subscriptions) = ctx.client.subscriptions_mut().take() {
        let registry = ctx.shared.pubsub();
        ctx.thread
            .subscribers
            .remove_all(registry, slot, subscriptions);
        ctx.client.subscriptions_mut().note_change();
        ctx.client.settle_subscriptions();
    }
}

pub(crate) fn subscribe(ctx: &mut Context<'_>) -> Done {
    subscribe_to(ctx, Kind::Channel)
}

pub(crate) fn psubscribe(ctx: &mut Context<'_>) -> Done {
    subscribe_to(ctx, Kind::Pattern)
}

pub(crate) fn ssubscribe(ctx: &mut Context<'_>) -> Done {
    if ctx.thread.exec.runs() {
        return Err(Failure::Text(
            "ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client",
        ));
    }
    subscribe_to(ctx, Kind::Shard)
}

pub(crate) fn unsubscribe(ctx: &mut Context<'_>) -> Done {
    unsubscribe_from(ctx, Kind::Channel)
}

pub(crate) fn punsubscribe(ctx: &mut Context<'_>) -> Done {
    unsubscribe_from(ctx, Kind::Pattern)
}

pub(crate) fn sunsubscribe(ctx: &mut Context<'_>) -> Done {
    unsubscribe_from(ctx, Kind::Shard)
}

fn send(ctx: &mut Context<'_>, kind: Kind) -> Done {
    let (channel, payload, reply_at) = (ctx.arg(1), ctx.arg(2), ctx.reply.len());
    ctx.reply.append(NO_RECEIVERS);
    let effects = &mut ctx.client.effects;
    effects.message(kind, channel, payload, reply_at);
    if kind == Kind::Channel {
        ctx.note_matching();
    }
    Ok(())
}

pub(crate) fn publish(ctx: &mut Context<'_>) -> Done {
    let bytes = ctx.arg(1).len() + ctx.arg(2).len();
    if ctx.shared.membership().is_some() && bytes > MESSAGE_BYTES_MAX {
        return Err(format!(
            "ERR a message to a cluster has at most {MESSAGE_BYTES_MAX} bytes with the name of its channel"
        )
        .into());
    }
    send(ctx, Kind::Channel)
}

pub(crate) fn spublish(ctx: &mut Context<'_>) -> Done {
    send(ctx, Kind::Shard)
}

/// Replies with the channels that have subscribers and match argument 2.
fn write_channels(ctx: &mut Context<'_>, kind: Kind) -> Done {
    at_most_one(ctx)?;
    let pattern = compiled(ctx.request.args.get(2))?;
    let pattern = pattern.as_ref();
    let matches = |name: &[u8]| pattern.is_none_or(|pattern| pattern.matches(name));
    let channels = ctx.shared.pubsub().channels(kind, matches);
    let mut reply = ctx.reply.encoder();
    reply.array(channels.len());
    channels.iter().for_each(|channel| reply.bulk(channel));
    Ok(())
}

fn at_most_one(ctx: &Context<'_>) -> Done {
    if ctx.request.args.len() <= 3 {
        return Ok(());
    }
    let sub = String::from_utf8_lossy(ctx.arg(1));
    Err(format!(
        "ERR unknown subcommand or wrong number of arguments for '{sub}'. Try PUBSUB HELP."
    )
    .into())
}

/// Replies with the number of subscribers of each channel from argument 2 on.
fn write_numbers(ctx: &mut Context<'_>, kind: Kind) -> Done {
    let (channels, registry) = (ctx.request.args.skip(2), ctx.shared.pubsub());
    let mut reply = ctx.reply.encoder();
    reply.array(2 * channels.len());
    for channel in channels {
        reply.bulk(channel);
        reply.integer(registry.subscribers(kind, channel) as i64);
    }
    Ok(())
}

pub(crate) fn channels(ctx: &mut Context<'_>) -> Done {
    write_channels(ctx, Kind::Channel)
}

pub(crate) fn shardchannels(ctx: &mut Context<'_>) -> Done {
    write_channels(ctx, Kind::Shard)
}

pub(crate) fn numsub(ctx: &mut Context<'_>) -> Done {
    write_numbers(ctx, Kind::Channel)
}

pub(crate) fn shardnumsub(ctx: &mut Context<'_>) -> Done {
    write_numbers(ctx, Kind::Shard)
}

pub(crate) fn numpat(ctx: &mut Context<'_>) -> Done {
    ctx.reply
        .integer(ctx.shared.pubsub().count(Kind::Pattern) as i64)
}

pub(crate) fn help(ctx: &mut Context<'_>) -> Done {
    ctx.reply.help(ctx.request.spec.container(), &[
        "CHANNELS [<pattern>]",
        "    Return the currently active channels matching a <pattern> (default: '*').",
        "NUMPAT",
        "    Return number of subscriptions to patterns.",
        "NUMSUB [<channel> ...]",
        "    Return the number of subscribers for the specified channels, excluding",
        "    pattern subscriptions(default: no channels).",
        "SHARDCHANNELS [<pattern>]",
        "    Return the currently active shard level channels matching a <pattern> (default: '*').",
        "SHARDNUMSUB [<shardchannel> ...]",
        "    Return the number of subscribers for the specified shard level channel(s)",
    ])
}
