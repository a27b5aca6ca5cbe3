//! Publish and subscribe: SUBSCRIBE and its relatives, PUBLISH, PUBSUB.
//!
//! A message leaves with the reply of its PUBLISH (`state::effects`), and the number in the reply
//! is filled in then.

use super::scan::compiled;
use crate::exec::request::context::{Context, Done, Failure};
use crate::exec::state::client::Client;
use crate::exec::state::effects::NO_RECEIVERS;
use crate::exec::state::local::Local;
use crate::exec::state::subscribers::{SUBSCRIPTIONS_BYTES_MAX, write_message};
use crate::shared::pubsub::{Kind, Publication};
use crate::shared::{MESSAGE_BYTES_MAX, Shared};
use duramen_wire::resp::Encoder;

/// The words of replies about subscriptions of a kind.
fn words(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Channel => ("subscribe", "unsubscribe"),
        Kind::Shard => ("ssubscribe", "sunsubscribe"),
        Kind::Pattern => ("psubscribe", "punsubscribe"),
    }
}

/// Replies that a subscription began or ended. `name`: `None` = there was none to end.
fn write_change(ctx: &mut Context<'_>, kind: Kind, word: &str, name: Option<&[u8]>) {
    let subscriptions = ctx.client.subscriptions.as_ref();
    let count = subscriptions.map_or(0, |subscriptions| subscriptions.shown(kind));
    let mut reply = ctx.reply();
    reply.push(3);
    reply.bulk(word.as_bytes());
    match name {
        Some(name) => reply.bulk(name),
        None => reply.null(),
    }
    reply.integer(count as i64);
}

fn subscribe_to(ctx: &mut Context<'_>, kind: Kind) -> Done {
    let names = ctx.args.skip(1);
    if kind == Kind::Pattern {
        for pattern in names {
            compiled(Some(pattern))?;
        }
    }
    let slot = ctx.client.record().slot;
    let subscriptions = ctx.client.subscriptions.get_or_insert_default();
    if !subscriptions.has_room(kind, names.into_iter()) {
        ctx.client.settle_subscriptions();
        return Err(too_many());
    }
    for name in names {
        let subscriptions = ctx.client.subscriptions.get_or_insert_default();
        if !subscriptions.has(kind, name) {
            let (registry, client) = (&ctx.shared.pubsub, (slot, &mut **subscriptions));
            ctx.local.subscribers.add(registry, client, kind, name);
        }
        write_change(ctx, kind, words(kind).0, Some(name));
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
    let word = words(kind).1;
    if ctx.args.len() > 1 {
        for name in ctx.args.skip(1) {
            end(ctx, kind, name);
            write_change(ctx, kind, word, Some(name));
        }
    } else {
        let subscriptions = ctx.client.subscriptions.as_ref();
        let names = subscriptions.map(|all| all.names(kind).cloned().collect::<Vec<_>>());
        let names = names.unwrap_or_default();
        for name in &names {
            end(ctx, kind, name);
            write_change(ctx, kind, word, Some(name));
        }
        if names.is_empty() {
            write_change(ctx, kind, word, None);
        }
    }
    ctx.client.settle_subscriptions();
    Ok(())
}

/// Ends a subscription, if there is one. Messages that were published before, and wait for this
/// thread, come before the reply (pubsub::P2).
fn end(ctx: &mut Context<'_>, kind: Kind, name: &[u8]) {
    let slot = ctx.client.record().slot;
    let Some(subscriptions) = &mut ctx.client.subscriptions else {
        return;
    };
    let (registry, client) = (&ctx.shared.pubsub, (slot, &mut **subscriptions));
    let Some(number) = ctx.local.subscribers.remove(registry, client, kind, name) else {
        return;
    };
    let is_one = |publication: &Publication| {
        publication.number >= number
            && match kind {
                Kind::Pattern => publication.patterns.iter().any(|known| **known == *name),
                kind => publication.kind == kind && *publication.channel == *name,
            }
    };
    let mailbox = &ctx.shared.threads[ctx.client.record().thread].mailbox;
    let pattern = (kind == Kind::Pattern).then(|| name.into());
    for publication in mailbox.publications(is_one) {
        let protocol = ctx.client.protocol;
        write_message(ctx.out, protocol, &publication, pattern.as_ref());
    }
}

/// Ends a client's subscription to a shard channel that another member serves now; returns what the
/// client is told.
pub(crate) fn end_left(
    shared: &Shared,
    local: &mut Local,
    client: &mut Client,
    channel: &[u8],
) -> Vec<u8> {
    let (mut told, slot) = (Vec::new(), client.record().slot);
    let Some(subscriptions) = &mut client.subscriptions else {
        return told;
    };
    let who = (slot, &mut **subscriptions);
    local
        .subscribers
        .remove(&shared.pubsub, who, Kind::Shard, channel);
    let count = subscriptions.shown(Kind::Shard);
    let mut push = Encoder::new(&mut told, client.protocol);
    push.push(3);
    push.bulk(words(Kind::Shard).1.as_bytes());
    push.bulk(channel);
    push.integer(count as i64);
    client.settle_subscriptions();
    told
}

/// Ends all subscriptions without a reply, for RESET.
pub(crate) fn end_all(ctx: &mut Context<'_>) {
    let slot = ctx.client.record().slot;
    if let Some(subscriptions) = ctx.client.subscriptions.take() {
        let registry = &ctx.shared.pubsub;
        ctx.local
            .subscribers
            .remove_all(registry, slot, subscriptions);
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
    if ctx.local.in_exec {
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
    let (channel, payload, reply_at) = (ctx.arg(1), ctx.arg(2), ctx.out.len());
    ctx.out.extend_from_slice(NO_RECEIVERS);
    let effects = &mut ctx.client.effects;
    effects.message(kind, channel, payload, reply_at);
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
    let pattern = compiled(ctx.args.get(2))?;
    let pattern = pattern.as_ref();
    let matches = |name: &[u8]| pattern.is_none_or(|pattern| pattern.matches(name));
    let channels = ctx.shared.pubsub.channels(kind, matches);
    let mut reply = ctx.reply();
    reply.array(channels.len());
    channels.iter().for_each(|channel| reply.bulk(channel));
    Ok(())
}

fn at_most_one(ctx: &Context<'_>) -> Done {
    if ctx.args.len() <= 3 {
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
    let (channels, registry) = (ctx.args.skip(2), &ctx.shared.pubsub);
    let mut reply = ctx.reply();
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
    ctx.integer(ctx.shared.pubsub.count(Kind::Pattern) as i64)
}

pub(crate) fn help(ctx: &mut Context<'_>) -> Done {
    ctx.help(&[
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
