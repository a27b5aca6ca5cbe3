//! The actions of a model server: its log, its leases, replays and migrations.

use super::*;

/// A server's own actions.
impl World {
    fn life(&mut self, index: usize) -> &mut Life {
        self.servers[index].life.as_mut().expect("it lives")
    }

    pub fn serves(&self, index: usize, key: Key) -> bool {
        let Some(life) = self.servers[index].life.as_ref() else {
            return false;
        };
        let state = match life.state_of(key) {
            Some(TabletState::Normal { .. }) => true,
            Some(TabletState::Outgoing { migration, .. }) => !life.locked.contains(&migration),
            _ => false,
        };
        state && life.noted && !life.stuck && life.lease_until_us > self.now_us
    }

    /// Writes a replica to a backup, if that accepts it.
    fn put(&mut self, from: usize, holder: ServerId, segment: SegmentId, replica: Replica) -> bool {
        let log = self.servers[from].id().expect("a member");
        let Some(to) = self.index_of(holder).filter(|to| self.reach(from, *to)) else {
            return false;
        };
        let holder = self.servers[to].life.as_ref().expect("it lives");
        let knows = &holder.members;
        let is_dead = holder.gone.contains(&log)
            || knows
                .iter()
                .any(|e| e.server.slot == log.slot && e.server > log)
            || knows.get(log).is_some() && !knows.is_up(log);
        let shelf = self.servers[to].shelf.entry(log).or_default();
        if shelf.fenced || is_dead {
            return false;
        }
        shelf.replicas.insert(segment, replica);
        true
    }

    /// Backups for a segment: random ones within reach.
    fn choose(&mut self, index: usize, without: &[ServerId], count: usize) -> Vec<ServerId> {
        let life = self.servers[index].life.as_ref().expect("it lives");
        let mut up: Vec<ServerId> = life.members.up().map(|e| e.server).collect();
        up.retain(|id| Some(*id) != life.id && !without.contains(id));
        up.retain(|id| self.index_of(*id).is_some_and(|to| self.reach(index, to)));
        let mut chosen = Vec::new();
        while chosen.len() < count && !up.is_empty() {
            let at = self.random.below(up.len() as u64) as usize;
            chosen.push(up.swap_remove(at));
        }
        chosen
    }

    /// Writes the list to the control segment's holders.
    fn put_control(&mut self, index: usize) -> bool {
        let life = self.life(index);
        let Some(control) = life.control else {
            return false;
        };
        let replica = Replica {
            kind: Kind::Control,
            epoch: 0,
            closed: false,
            entries: Vec::new(),
            control: life.control_bytes(control),
        };
        let holders = life.control_holders.clone();
        holders
            .into_iter()
            .all(|holder| self.put(index, holder, control, replica.clone()))
    }

    /// Continues the control log in a new segment on new holders; the coordinator must note it
    /// before anything else.
    fn roll_control(&mut self, index: usize) {
        let holders = self.choose(index, &[], REPLICAS);
        if holders.len() < REPLICAS {
            return;
        }
        let life = self.life(index);
        let before = (life.control, std::mem::take(&mut life.control_holders));
        let id = life.new_segment();
        life.control = Some(id);
        life.control_holders = holders;
        life.noted = false;
        life.rolls = false;
        life.ask_at_us = 0;
        let ok = self.put_control(index);
        self.life(index).stuck = !ok;
        if !ok {
            return;
        }
        // The old one is closed where it is reached, and most often freed.
        let (Some(old), holders) = before else {
            return;
        };
        let log = self.servers[index].id().expect("a member");
        let frees = !self.random.one_in(3);
        for holder in holders {
            let at = self.index_of(holder).filter(|to| self.reach(index, *to));
            let shelf = at.and_then(|to| self.servers[to].shelf.get_mut(&log));
            let Some(shelf) = shelf.filter(|shelf| !shelf.fenced) else {
                continue;
            };
            match shelf.replicas.get_mut(&old) {
                Some(_) if frees => drop(shelf.replicas.remove(&old)),
                Some(replica) => replica.closed = true,
                None => {}
            }
        }
    }

    /// Adds a new segment with these entries, listed and on all of its holders; or nothing, and the
    /// server is stuck.
    fn add_segment(
        &mut self,
        index: usize,
        entries: Vec<(Key, Value)>,
        closed: bool,
    ) -> Option<SegmentId> {
        let holders = self.choose(index, &[], REPLICAS);
        if holders.len() < REPLICAS {
            return None;
        }
        let kind = if closed { Kind::Survivor } else { Kind::Head };
        let replica = Replica {
            kind,
            epoch: 0,
            closed,
            entries,
            control: Vec::new(),
        };
        let id = self.life(index).new_segment();
        for holder in &holders {
            if !self.put(index, *holder, id, replica.clone()) {
                return None;
            }
        }
        self.life(index)
            .segments
            .insert(id, Segment { holders, replica });
        if !self.put_control(index) {
            self.life(index).stuck = true;
            return None;
        }
        Some(id)
    }

    /// Closes the head, so that later segments have a higher id.
    fn close_head(&mut self, index: usize) -> bool {
        let Some(open) = self.life(index).open.take() else {
            return true;
        };
        if let Some(segment) = self.life(index).segments.get_mut(&open) {
            segment.replica.closed = true;
        }
        let ok = self.put_segment(index, open) && self.put_control(index);
        self.life(index).stuck |= !ok;
        ok
    }

    fn put_segment(&mut self, index: usize, id: SegmentId) -> bool {
        let segment = &self.life(index).segments[&id];
        let (holders, replica) = (segment.holders.clone(), segment.replica.clone());
        holders
            .into_iter()
            .all(|holder| self.put(index, holder, id, replica.clone()))
    }

    /// Whether the write is acknowledged. If not, a read may show it or not.
    pub fn write(&mut self, index: usize, key: Key, value: Value) -> bool {
        let life = self.life(index);
        let is_full = life
            .open
            .is_some_and(|open| life.segments[&open].replica.entries.len() >= FULL);
        if is_full && !self.close_head(index) {
            return false;
        }
        if self.life(index).open.is_none() {
            let Some(id) = self.add_segment(index, Vec::new(), false) else {
                return false;
            };
            self.life(index).open = Some(id);
        }
        let life = self.life(index);
        let open = life.open.expect("just opened");
        let segment = life.segments.get_mut(&open).expect("it is listed");
        segment.replica.entries.push((key, value));
        life.data.insert(key, value);
        let ok = self.put_segment(index, open);
        self.life(index).stuck |= !ok;
        ok
    }

    /// Does the due work.
    pub fn act(&mut self, index: usize) {
        if self.servers[index].life.is_none() {
            return;
        }
        if self.servers[index].id().is_none() {
            self.ask_again(index);
            return;
        }
        self.watch(index);
        self.repair(index);
        self.renew_lease(index);
        let due: Vec<Source> = {
            let now_us = self.now_us;
            let arrivals = self.life(index).arrivals.iter();
            let is_due = |a: &Arrival| a.stage == Stage::Running && a.due_us <= now_us;
            arrivals
                .filter(|(_, a)| is_due(a))
                .map(|(s, _)| *s)
                .collect()
        };
        for source in due {
            self.replay(index, source);
        }
        self.move_out(index);
        self.ask_again(index);
    }

    fn watch(&mut self, index: usize) {
        let now_us = self.now_us;
        for act in self.life(index).detector.tick(now_us) {
            let suspect = match act {
                Act::Suspect(suspect) => Some(suspect),
                Act::Ping { to, nonce } => match self.index_of(to) {
                    Some(other) if self.reach(index, other) => {
                        let newest = self.life(other).members.version();
                        let detector = &mut self.life(index).detector;
                        detector.pong(now_us, nonce);
                        if detector.heard(now_us, newest) {
                            self.confirm(index);
                        }
                        None
                    }
                    Some(_) => None,
                    None => self.life(index).detector.unreachable(to).map(|_| to),
                },
            };
            if let Some(server) = suspect {
                let list_version = self.life(index).members.version();
                let question = ToCoordinator::Suspect {
                    server,
                    list_version,
                };
                let reply = self.question(index, question);
                self.life(index).wishes.insert(reply, Wish::Accepted);
            }
        }
    }

    /// Reports its versions; the coordinator answers if it is not a member any more.
    fn confirm(&mut self, index: usize) {
        let life = self.life(index);
        let question = ToCoordinator::Confirm {
            server: life.id.expect("a member"),
            list_version: life.members.version(),
            tablets_version: life.tablets.version,
        };
        let reply = self.question(index, question);
        self.life(index).wishes.insert(reply, Wish::Accepted);
    }

    /// Replaces crashed holders, and writes missing replicas.
    fn repair(&mut self, index: usize) {
        if self.life(index).control.is_none() {
            self.roll_control(index);
            return;
        }
        let life = self.life(index);
        let lost = |holders: &[ServerId]| holders.iter().any(|h| !life.members.is_up(*h));
        let affected: Vec<SegmentId> = life
            .segments
            .iter()
            .filter(|(_, segment)| lost(&segment.holders))
            .map(|(id, _)| *id)
            .collect();
        life.rolls |= lost(&life.control_holders);
        life.stuck |= life.rolls || !affected.is_empty();
        for id in affected {
            let life = self.life(index);
            let mut holders = life.segments[&id].holders.clone();
            holders.retain(|h| life.members.is_up(*h));
            let more = self.choose(index, &holders, REPLICAS - holders.len());
            holders.extend(more);
            if holders.len() < REPLICAS {
                return;
            }
            let life = self.life(index);
            let segment = life.segments.get_mut(&id).expect("it is listed");
            segment.holders = holders;
            segment.replica.epoch += u64::from(!segment.replica.closed);
            life.rolls |= !segment.replica.closed;
        }
        if self.life(index).stuck {
            self.place_everything(index);
        }
    }

    /// Writes every segment to all of its holders first, and only then the control segment.
    fn place_everything(&mut self, index: usize) {
        let ids: Vec<SegmentId> = self.life(index).segments.keys().copied().collect();
        if !ids.into_iter().all(|id| self.put_segment(index, id)) {
            return;
        }
        if self.life(index).rolls {
            self.roll_control(index);
        } else {
            let ok = self.put_control(index);
            self.life(index).stuck = !ok;
        }
    }

    fn renew_lease(&mut self, index: usize) {
        let id = self.servers[index].id().expect("a member");
        let until_us = self.now_us + u64::from(duramen_harness::settings().read_lease_ms) * MS;
        let life = self.life(index);
        let Some(control) = life.control else {
            return;
        };
        let holders = life.control_holders.clone();
        let mut grants = 0;
        for holder in &holders {
            let at = self.index_of(*holder).filter(|to| self.reach(index, *to));
            let shelf = at.and_then(|to| self.servers[to].shelf.get_mut(&id));
            let grants_it = |s: &&mut Shelf| !s.fenced && s.replicas.contains_key(&control);
            if let Some(shelf) = shelf.filter(grants_it) {
                shelf.granted_until_us = until_us;
                grants += 1;
            }
        }
        if grants == REPLICAS {
            self.life(index).lease_until_us = until_us;
        }
    }

    fn replay(&mut self, index: usize, source: Source) {
        let outcome = self.try_replay(index, source);
        if let Some(arrival) = self.life(index).arrivals.get_mut(&source) {
            arrival.stage = Stage::Reported;
            match outcome {
                Ok((data, creation)) => {
                    arrival.data = data;
                    arrival.creation = creation;
                }
                Err(failed) => arrival.failed = Some(failed),
            }
        }
        self.life(index).ask_at_us = 0;
    }

    fn try_replay(
        &mut self,
        index: usize,
        source: Source,
    ) -> Result<(BTreeMap<Key, Value>, SegmentId), (bool, String)> {
        let order = self.life(index).arrivals[&source]
            .order
            .clone()
            .expect("a partition");
        if !self.servers[index].has_space {
            return Err((true, "no space".to_owned()));
        }
        let mut data: BTreeMap<Key, Value> = BTreeMap::new();
        for segment in order.segments.iter() {
            let found = segment.sources.iter().find_map(|source| {
                let at = self
                    .index_of(*source)
                    .filter(|at| *at == index || self.reach(index, *at))?;
                let replica = self.servers[at]
                    .shelf
                    .get(&order.log)?
                    .replicas
                    .get(&segment.segment)?;
                (replica.certificate() == segment.certificate).then_some(replica)
            });
            let Some(replica) = found else {
                return Err((false, format!("segment {} is nowhere", segment.segment)));
            };
            for (key, value) in &replica.entries {
                let wanted = |t: &&duramen_wire::native::message::RecoverTablet| {
                    t.table == key.0 && t.range.contains(key.1) && segment.segment >= t.creation
                };
                if order.tablets.iter().find(wanted).is_some() {
                    let newest = data.entry(*key).or_default();
                    *newest = (*newest).max(*value);
                }
            }
        }
        self.take_in(index, data)
    }

    /// Makes data durable in the own log, in segments that are younger than all others.
    fn take_in(
        &mut self,
        index: usize,
        data: BTreeMap<Key, Value>,
    ) -> Result<(BTreeMap<Key, Value>, SegmentId), (bool, String)> {
        let no = || (true, "backups are missing".to_owned());
        if self.life(index).stuck || !self.life(index).noted || !self.close_head(index) {
            return Err(no());
        }
        let entries = data.iter().map(|(key, value)| (*key, *value)).collect();
        let creation = self.add_segment(index, entries, true).ok_or_else(no)?;
        Ok((data, creation))
    }

    /// Moves tablets out: all data at once, and then the tablet is locked.
    fn move_out(&mut self, index: usize) {
        let life = self.life(index);
        let leaving = life.tablets.tablets.iter().find_map(|t| match t.state {
            TabletState::Outgoing { migration, to, .. } if !life.locked.contains(&migration) => {
                Some((migration, to, t.table, t.range))
            }
            _ => None,
        });
        let Some((migration, to, table, range)) = leaving else {
            return;
        };
        if self.random.one_in(3) || !self.serves(index, (table, range.first)) {
            return;
        }
        let Some(target) = self.index_of(to).filter(|to| self.reach(index, *to)) else {
            return;
        };
        let id = self.servers[index].id().expect("a member");
        let expected = TabletState::Incoming {
            migration,
            from: id,
        };
        let knows = self.life(target).state_of((table, range.first)) == Some(expected);
        let source = Source::Migration(migration);
        if !knows || self.life(target).arrivals.contains_key(&source) {
            return;
        }
        self.life(index).locked.insert(migration);
        let all = self.life(index).data.clone();
        let data = all
            .into_iter()
            .filter(|((t, at), _)| *t == table && range.contains(*at));
        let outcome = self.take_in(target, data.collect());
        let mut arrival = Arrival {
            ranges: vec![(table, range)],
            data: BTreeMap::new(),
            creation: SegmentId::NONE,
            stage: Stage::Reported,
            order: None,
            due_us: 0,
            failed: None,
        };
        match outcome {
            Ok((data, creation)) => {
                arrival.data = data;
                arrival.creation = creation;
            }
            Err(failed) => arrival.failed = Some(failed),
        }
        self.life(target).arrivals.insert(source, arrival);
        self.life(target).ask_at_us = 0;
    }

    /// Repeats unanswered requests to the coordinator.
    fn ask_again(&mut self, index: usize) {
        let now_us = self.now_us;
        let (disk, replaces) = (self.servers[index].disk, self.servers[index].stored_id);
        let server = &mut self.servers[index];
        let life = server.life.as_mut().expect("it lives");
        if life.ask_at_us > now_us {
            return;
        }
        let is_alone = life.id.is_some() && life.detector.is_alone();
        let strangers: Vec<ServerId> = server
            .shelf
            .keys()
            .copied()
            .filter(|log| life.members.get(*log).is_none())
            .collect();
        life.ask_at_us = now_us + AGAIN_US;
        let mut questions = Vec::new();
        match (life.id, life.control) {
            (None, _) => {
                let enlist = crate::coordinator::rig::enlist(disk, life.nonce, replaces);
                questions.push((enlist, Wish::Enlist));
            }
            (Some(server), Some(min_open)) if !life.noted => {
                let head = ToCoordinator::ControlHead { server, min_open };
                questions.push((head, Wish::Head(min_open)));
            }
            _ => {}
        }
        if !strangers.is_empty() && life.id.is_some() {
            questions.push((ToCoordinator::Servers, Wish::Strangers(strangers)));
        }
        for (source, arrival) in &life.arrivals {
            if let (Stage::Reported, Some(server)) = (arrival.stage, life.id) {
                questions.push((report(*source, arrival, server), Wish::Report(*source)));
            }
        }
        if is_alone {
            self.confirm(index);
        }
        for (question, wish) in questions {
            let reply = self.question(index, question);
            self.life(index).wishes.insert(reply, wish);
        }
    }
}
