//! Reports a new certificate to the coordinator. A connection stays open when its certificate is
//! replaced, so the coordinator would see the old certificate until the next connection. Each new
//! leader gets a report as well, because its connection may be just as old.

use super::{Asker, NodeThread};
use duramen_tls::Identity;
use duramen_wire::native::codec::Reply;
use duramen_wire::native::message::{CoordinatorAnswer, ToCoordinator};
use std::sync::Arc;

/// A report without an answer is repeated after this time.
const AGAIN_US: u64 = 1_000_000;

/// The state of the reports: the last certificate that the coordinator knows.
pub(super) struct Renewal {
    /// The certificates of this member; `None` in a cluster without TLS.
    identity: Option<Arc<Identity>>,
    /// The generation of the certificate that the coordinator of this term knows; `None` if it has
    /// had no report in this life.
    known: Option<u64>,
    term: u32,
    due_us: u64,
}

impl Renewal {
    pub(super) fn new(identity: Option<Arc<Identity>>) -> Renewal {
        Renewal {
            identity,
            known: None,
            term: 0,
            due_us: 0,
        }
    }

    /// The generation and the end of a certificate that is to be reported now to the coordinator of
    /// this term.
    fn due(&mut self, now_us: u64, term: u32) -> Option<(u64, i64)> {
        let identity = self.identity.as_ref()?;
        if term != self.term {
            (self.term, self.known) = (term, None);
        }
        // The generation is read before the certificate: if a newer certificate comes in between,
        // it gets its own report later.
        let generation = identity.generation();
        if self.known == Some(generation) || now_us < self.due_us {
            return None;
        }
        self.due_us = now_us + AGAIN_US;
        Some((generation, identity.certificate()?.not_after))
    }

    fn told(&mut self, generation: u64, term: u32) {
        if term == self.term {
            self.known = Some(generation);
        }
    }
}

impl NodeThread {
    pub(super) fn tell_of_renewal(&mut self, now_us: u64) {
        let server = self.parts.node.member().id();
        if self.membership.is_none() {
            return; // reported once this server is a member
        }
        let term = self.parts.node.member().term();
        if let Some((generation, expires_s)) = self.renewal.due(now_us, term) {
            let question = ToCoordinator::Certificate { server, expires_s };
            let address = self.parts.node.member().coordinator().to_owned();
            self.ask_coordinator(Asker::Certificate(generation, term), &address, &question);
        }
    }

    /// Handles the answer to a report. `reply` is `None` if an older coordinator does not
    /// understand the report.
    pub(super) fn told_of_renewal(
        &mut self,
        (generation, term): (u64, u32),
        reply: Option<Reply<'_>>,
    ) {
        let is_refused = matches!(
            reply,
            Some(Reply::Coordinator(CoordinatorAnswer::Refused(_)))
        );
        if !is_refused {
            self.renewal.told(generation, term);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_tls::{Authority, Request, Settings};

    #[test]
    fn a_new_certificate_is_told_of_until_it_is_heard() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path();
        let authority = Authority::create(dir, "a test", 9).expect("made");
        let request = |days| Request {
            name: "member".to_owned(),
            sans: vec!["127.0.0.1".to_owned()],
            days,
        };
        let issued = authority.issue(&request(1)).expect("issued");
        let files = ["member.crt", "member.key", "ca.crt"].map(|file| dir.join(file));
        let settings = Settings::mutual(&files[0], &files[1], &files[2]);
        let identity = Arc::new(Identity::load(settings).expect("loaded"));
        let mut renewal = Renewal::new(Some(Arc::clone(&identity)));
        let first = renewal.due(5_000_000, 3);
        assert_eq!(first, Some((0, issued.description.not_after)));
        renewal.told(0, 3);
        assert_eq!(renewal.due(6_000_000, 3), None);
        let renewed = authority.renew(&request(8)).expect("renewed");
        identity.reload().expect("reloaded");
        let told = renewal.due(7_000_000, 3);
        assert_eq!(told, Some((1, renewed.description.not_after)));
        assert_eq!(renewal.due(7_500_000, 3), None, "it waits for the answer");
        assert_eq!(renewal.due(8_000_000, 3), told, "there was none");
        renewal.told(1, 3);
        assert_eq!(renewal.due(9_000_000, 3), None);
        // A new leader, which knows the certificate of its first connection only, alarmed of it.
        assert_eq!(renewal.due(10_000_000, 4), told);
        renewal.told(1, 3); // the last leader, late
        assert_eq!(renewal.due(11_000_000, 4), told);
        renewal.told(1, 4);
        assert_eq!(renewal.due(12_000_000, 4), None);
        assert_eq!(Renewal::new(None).due(1, 3), None);
    }
}
