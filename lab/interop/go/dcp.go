package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
)

const endless = gocbcore.SeqNo(0xffffffffffffffff)

// Feed is a DCP agent and what is asked of it.
type Feed struct {
	agent    *gocbcore.DCPAgent
	vbuckets int
	flags    memd.DcpStreamAddFlag
}

// newFeed is a DCP agent that is ready.
func newFeed(settings Settings, flags memd.DcpOpenFlag, configure func(*gocbcore.DCPAgentConfig)) (*Feed, error) {
	security, err := settings.security()
	if err != nil {
		return nil, err
	}
	config := gocbcore.DCPAgentConfig{}
	if err := config.FromConnStr(settings.connect); err != nil {
		return nil, err
	}
	config.BucketName = settings.bucket
	config.SecurityConfig = security
	config.IoConfig.UseCollections = true
	if configure != nil {
		configure(&config)
	}
	agent, err := gocbcore.CreateDcpAgent(&config, fmt.Sprintf("interop-%d", time.Now().UnixNano()), flags|memd.DcpOpenFlagProducer)
	if err != nil {
		return nil, err
	}
	_, err = wait(func(done func(*gocbcore.WaitUntilReadyResult, error)) (gocbcore.PendingOp, error) {
		options := gocbcore.WaitUntilReadyOptions{ServiceTypes: []gocbcore.ServiceType{gocbcore.MemdService}}
		return agent.WaitUntilReady(time.Now().Add(readyTimeout), options, done)
	})
	if err != nil {
		_ = agent.Close()
		return nil, fmt.Errorf("the DCP agent was not ready: %w", err)
	}
	snapshot, err := agent.ConfigSnapshot()
	if err != nil {
		return nil, err
	}
	vbuckets, err := snapshot.NumVbuckets()
	return &Feed{agent, vbuckets, memd.DcpStreamAddFlagActiveOnly}, err
}

// Position is where a stream begins.
type Position struct {
	vbuuid                    gocbcore.VbUUID
	seqno, snapStart, snapEnd gocbcore.SeqNo
}

func (f *Feed) open(vbid uint16, from Position, end gocbcore.SeqNo, to gocbcore.StreamObserver, options gocbcore.OpenStreamOptions) ([]gocbcore.FailoverEntry, error) {
	return wait(func(done func([]gocbcore.FailoverEntry, error)) (gocbcore.PendingOp, error) {
		return f.agent.OpenStream(vbid, f.flags, from.vbuuid, from.seqno, end, from.snapStart, from.snapEnd, to, options, done)
	})
}

// openAll opens every vbucket from the beginning.
func (f *Feed) openAll(ends map[uint16]gocbcore.SeqNo, to *Consumer, options gocbcore.OpenStreamOptions) error {
	return each(f.vbuckets, func(number int) error {
		end, isThere := ends[uint16(number)]
		if !isThere {
			end = endless
		}
		log, err := f.open(uint16(number), Position{}, end, to, options)
		if err != nil {
			return fmt.Errorf("vbucket %d: %w", number, err)
		}
		return want(len(log) > 0, "vbucket %d: an empty failover log", number)
	})
}

// seqnos are the high seqnos of all active vbuckets, or of a collection in them.
func (f *Feed) seqnos(collection *uint32) (map[uint16]gocbcore.SeqNo, error) {
	options := gocbcore.GetVbucketSeqnoOptions{}
	if collection != nil {
		options.FilterOptions = &gocbcore.GetVbucketSeqnoFilterOptions{CollectionID: *collection}
	}
	entries, err := wait(func(done func([]gocbcore.VbSeqNoEntry, error)) (gocbcore.PendingOp, error) {
		return f.agent.GetVbucketSeqnos(0, memd.VbucketStateActive, options, done)
	})
	found := map[uint16]gocbcore.SeqNo{}
	for _, entry := range entries {
		found[entry.VbID] = entry.SeqNo
	}
	if err == nil {
		err = want(len(found) == f.vbuckets, "seqnos of %d vbuckets, there are %d", len(found), f.vbuckets)
	}
	return found, err
}

func (f *Feed) failoverLog(vbid uint16) ([]gocbcore.FailoverEntry, error) {
	return wait(func(done func([]gocbcore.FailoverEntry, error)) (gocbcore.PendingOp, error) {
		return f.agent.GetFailoverLog(vbid, done)
	})
}

func (f *Feed) closeStream(vbid uint16) error {
	_, err := wait(func(done func(struct{}, error)) (gocbcore.PendingOp, error) {
		return f.agent.CloseStream(vbid, gocbcore.CloseStreamOptions{}, func(err error) { done(struct{}{}, err) })
	})
	return err
}

// dcpJudge writes through a key-value agent and expects the same from streams.
type dcpJudge struct {
	settings Settings
	agent    *gocbcore.Agent
	spaces   []Keyspace
	ids      []uint32
	expected []map[document]uint64
}

func dcpParts(settings Settings) ([]Part, func(), error) {
	agent, err := newAgent(settings)
	if err != nil {
		return nil, nil, err
	}
	d := &dcpJudge{settings: settings, agent: agent}
	for _, name := range []string{"_default._default", "shop.orders", "shop.returns"} {
		scope, collection, _ := strings.Cut(name, ".")
		space := Keyspace{agent, scope, collection}
		id, err := space.id()
		if err != nil {
			return nil, nil, fmt.Errorf("the id of %s: %w", name, err)
		}
		d.spaces, d.ids = append(d.spaces, space), append(d.ids, id)
		d.expected = append(d.expected, map[document]uint64{})
	}
	parts := []Part{
		{fmt.Sprintf("%d writes in three collections", settings.count), d.write},
		{"backfill of every vbucket, by hash", d.backfill},
		{"backfill in small windows of flow control", d.flowControl},
		{"backfill with compression", d.compressed},
		{"backfill and then live, by hash", d.live},
		{"filter of a collection", d.oneCollection},
		{"filter of a scope, system events", d.oneScope},
		{"seqnos of a collection", d.collectionSeqnos},
		{"out-of-order backfill", d.outOfOrder},
		{"two streams of a vbucket by stream id", d.streamIDs},
		{"keys without values", d.withoutValues},
		{"expirations as such", d.expirations},
		{"resumed within a snapshot", d.resumed},
		{"rollback of a branch that nobody knows", d.rollback},
		{"streams are closed", d.closed},
		{"backfill order, priority", d.ordered},
		{"change streams, refused where no history is kept", d.changeStreams},
		{"the node is restarted while streaming", d.restarted},
	}
	return parts, func() { _ = agent.Close() }, nil
}

// put writes a document and expects it.
func (d *dcpJudge) put(space int, key, value string, expiry uint32) error {
	_, err := d.spaces[space].set(key, []byte(value), expiry)
	return err
}

func body(number, version int) string {
	return fmt.Sprintf(`{"number":%d,"version":%d,"text":"%s"}`, number, version, strings.Repeat("lorem ipsum ", number%40))
}

// write makes documents, changes a third of them and removes a tenth, in all collections.
func (d *dcpJudge) write() error {
	for space := range d.spaces {
		key := func(number int) string { return fmt.Sprintf("doc:%d", number) }
		step := func(number int) error {
			if err := d.put(space, key(number), body(number, 1), 0); err != nil {
				return err
			}
			if number%3 == 0 {
				if err := d.put(space, key(number), body(number, 2), 0); err != nil {
					return err
				}
			}
			if number%10 == 7 {
				_, err := d.spaces[space].remove(key(number), 0)
				return err
			}
			return nil
		}
		if err := each(d.settings.count, step); err != nil {
			return err
		}
		for number := 0; number < d.settings.count; number++ {
			version := 1
			if number%3 == 0 {
				version = 2
			}
			if number%10 != 7 {
				d.expected[space][document{d.ids[space], key(number)}] = hashed([]byte(body(number, version)))
			}
		}
	}
	return nil
}

// of is what is expected of these collections together.
func (d *dcpJudge) of(spaces ...int) map[document]uint64 {
	all := map[document]uint64{}
	for _, space := range spaces {
		for id, hash := range d.expected[space] {
			all[id] = hash
		}
	}
	return all
}

// drained opens all streams to the seqnos that are there now and waits for their ends.
func (d *dcpJudge) drained(feed *Feed, options gocbcore.OpenStreamOptions) (*Consumer, error) {
	ends, err := feed.seqnos(nil)
	if err != nil {
		return nil, err
	}
	consumer := newConsumer()
	if err := feed.openAll(ends, consumer, options); err != nil {
		return consumer, err
	}
	return consumer, consumer.until("the streams' ends", func() bool { return consumer.isEnded(feed.vbuckets) })
}

// with gives an agent to a part and closes it afterwards.
func (d *dcpJudge) with(flags memd.DcpOpenFlag, configure func(*gocbcore.DCPAgentConfig), use func(*Feed) error) error {
	feed, err := newFeed(d.settings, flags, configure)
	if err != nil {
		return err
	}
	defer func() { _ = feed.agent.Close() }()
	return use(feed)
}

func (d *dcpJudge) backfill() error {
	return d.with(0, nil, func(feed *Feed) error {
		consumer, err := d.drained(feed, gocbcore.OpenStreamOptions{})
		if err != nil {
			return err
		}
		return all(consumer.differs(d.of(0, 1, 2)), want(consumer.events["deletion"] > 0, "no deletion came"))
	})
}

func (d *dcpJudge) flowControl() error {
	small := func(config *gocbcore.DCPAgentConfig) { config.DCPConfig.BufferSize = 4000 }
	return d.with(0, small, func(feed *Feed) error {
		consumer, err := d.drained(feed, gocbcore.OpenStreamOptions{})
		if err != nil {
			return err
		}
		return all(consumer.differs(d.of(0, 1, 2)), want(consumer.bytes > 10*4000, "only %d bytes came", consumer.bytes))
	})
}

func (d *dcpJudge) compressed() error {
	compression := func(config *gocbcore.DCPAgentConfig) { config.CompressionConfig.Enabled = true }
	return d.with(0, compression, func(feed *Feed) error {
		consumer, err := d.drained(feed, gocbcore.OpenStreamOptions{})
		if err != nil {
			return err
		}
		return consumer.differs(d.of(0, 1, 2))
	})
}

func (d *dcpJudge) live() error {
	return d.with(0, nil, func(feed *Feed) error {
		consumer := newConsumer()
		if err := feed.openAll(nil, consumer, gocbcore.OpenStreamOptions{}); err != nil {
			return err
		}
		if err := each(d.settings.count/2, func(number int) error {
			return d.put(0, fmt.Sprintf("live:%d", number), body(number, 3), 0)
		}); err != nil {
			return err
		}
		for number := 0; number < d.settings.count/2; number++ {
			d.expected[0][document{d.ids[0], fmt.Sprintf("live:%d", number)}] = hashed([]byte(body(number, 3)))
		}
		if _, err := d.spaces[0].remove("live:0", 0); err != nil {
			return err
		}
		gone := document{d.ids[0], "live:0"}
		delete(d.expected[0], gone)
		expected := d.of(0, 1, 2)
		err := consumer.until("the live writes", func() bool { return consumer.deleted[gone] && len(consumer.present) == len(expected) })
		return all(err, consumer.differs(expected), want(len(consumer.ends) == 0, "streams ended: %v", consumer.ends))
	})
}

func filter(scope uint32, collections ...uint32) gocbcore.OpenStreamOptions {
	return gocbcore.OpenStreamOptions{
		FilterOptions: &gocbcore.OpenStreamFilterOptions{ScopeID: scope, CollectionIDs: collections},
	}
}

func (d *dcpJudge) oneCollection() error {
	return d.with(0, nil, func(feed *Feed) error {
		consumer, err := d.drained(feed, filter(0, d.ids[1]))
		if err != nil {
			return err
		}
		return all(consumer.differs(d.of(1)), want(consumer.created["orders"], "created: %v", consumer.created))
	})
}

func (d *dcpJudge) oneScope() error {
	manifest, err := manifestOf(d.agent)
	if err != nil {
		return err
	}
	id, err := manifest.scopeID("shop")
	if err != nil {
		return err
	}
	return d.with(0, nil, func(feed *Feed) error {
		consumer, err := d.drained(feed, filter(id))
		if err != nil {
			return err
		}
		isComplete := consumer.created["shop"] && consumer.created["orders"] && consumer.created["returns"]
		return all(consumer.differs(d.of(1, 2)), want(isComplete, "created: %v", consumer.created))
	})
}

func (d *dcpJudge) collectionSeqnos() error {
	return d.with(0, nil, func(feed *Feed) error {
		whole, err := feed.seqnos(nil)
		part, err2 := feed.seqnos(&d.ids[1])
		if err := all(err, err2); err != nil {
			return err
		}
		for vbid, seqno := range part {
			if seqno == 0 || seqno > whole[vbid] {
				return fmt.Errorf("vbucket %d: %d of the collection, %d in all", vbid, seqno, whole[vbid])
			}
		}
		return nil
	})
}

// outOfOrder reads from disk alone: what is in memory comes in the order of its seqnos, and a server of 8.0 keeps a
// small bucket there.
func (d *dcpJudge) outOfOrder() error {
	oso := func(config *gocbcore.DCPAgentConfig) { config.DCPConfig.UseOSOBackfill = true }
	return d.with(0, oso, func(feed *Feed) error {
		feed.flags |= memd.DcpStreamAddFlagDiskOnly
		consumer, err := d.drained(feed, filter(0, d.ids[2]))
		if err != nil {
			return err
		}
		return all(consumer.differs(d.of(2)), want(consumer.events["oso"] >= 2, "no snapshot was out of order: %v", consumer.events))
	})
}

func (d *dcpJudge) streamIDs() error {
	ids := func(config *gocbcore.DCPAgentConfig) { config.DCPConfig.UseStreamID = true }
	return d.with(0, ids, func(feed *Feed) error {
		ends, err := feed.seqnos(nil)
		if err != nil {
			return err
		}
		consumers := []*Consumer{newConsumer(), newConsumer()}
		for number, consumer := range consumers {
			options := filter(0, d.ids[number+1])
			options.StreamOptions = &gocbcore.OpenStreamStreamOptions{StreamID: uint16(number + 1)}
			if err := feed.openAll(ends, consumer, options); err != nil {
				return err
			}
		}
		for number, consumer := range consumers {
			err := consumer.until("the streams' ends", func() bool { return consumer.isEnded(feed.vbuckets) })
			only := len(consumer.streamIDs) == 1 && consumer.streamIDs[uint16(number+1)] > 0
			if err := all(err, consumer.differs(d.of(number+1)), want(only, "stream ids %v", consumer.streamIDs)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (d *dcpJudge) withoutValues() error {
	return d.with(memd.DcpOpenFlagNoValue, nil, func(feed *Feed) error {
		consumer, err := d.drained(feed, gocbcore.OpenStreamOptions{})
		if err != nil {
			return err
		}
		return all(want(len(consumer.present) == len(d.of(0, 1, 2)), "%d keys", len(consumer.present)),
			want(consumer.bytes == 0, "%d bytes of values came", consumer.bytes))
	})
}

func (d *dcpJudge) expirations() error {
	opcode := func(config *gocbcore.DCPAgentConfig) { config.DCPConfig.UseExpiryOpcode = true }
	return d.with(memd.DcpOpenFlagIncludeDeleteTimes, opcode, func(feed *Feed) error {
		consumer := newConsumer()
		if err := feed.openAll(nil, consumer, gocbcore.OpenStreamOptions{}); err != nil {
			return err
		}
		if err := d.put(0, "mortal", `{}`, 1); err != nil {
			return err
		}
		end := time.Now().Add(opTimeout)
		for {
			_, err := d.spaces[0].get("mortal")
			if errors.Is(err, gocbcore.ErrDocumentNotFound) {
				break
			}
			if err != nil || time.Now().After(end) {
				return fmt.Errorf("the document did not expire: %v", err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		id := document{d.ids[0], "mortal"}
		return consumer.until("the expiration", func() bool { return consumer.expired[id] })
	})
}

// somewhere is a vbucket with a history, its newest branch and its high seqno.
func (d *dcpJudge) somewhere(feed *Feed) (uint16, gocbcore.VbUUID, gocbcore.SeqNo, error) {
	seqnos, err := feed.seqnos(nil)
	if err != nil {
		return 0, 0, 0, err
	}
	vbid := uint16(0)
	for candidate, seqno := range seqnos {
		if seqno > seqnos[vbid] {
			vbid = candidate
		}
	}
	log, err := feed.failoverLog(vbid)
	if err != nil {
		return 0, 0, 0, err
	}
	if len(log) == 0 || seqnos[vbid] < 4 {
		return 0, 0, 0, fmt.Errorf("vbucket %d has log %v and seqno %d", vbid, log, seqnos[vbid])
	}
	return vbid, log[0].VbUUID, seqnos[vbid], nil
}

func (d *dcpJudge) resumed() error {
	return d.with(0, nil, func(feed *Feed) error {
		vbid, vbuuid, high, err := d.somewhere(feed)
		if err != nil {
			return err
		}
		middle := high / 2
		for _, from := range []Position{
			{vbuuid, middle, 0, high}, {vbuuid, middle, middle, middle}, {vbuuid, high, high, high},
		} {
			consumer := newConsumer()
			if _, err := feed.open(vbid, from, high, consumer, gocbcore.OpenStreamOptions{}); err != nil {
				return fmt.Errorf("from %+v: %w", from, err)
			}
			if err := consumer.until("the stream's end", func() bool { return consumer.isEnded(1) }); err != nil {
				return err
			}
			last := consumer.last[vbid]
			if err := want(from.seqno == high || gocbcore.SeqNo(last) == high, "from %+v: ended at %d", from, last); err != nil {
				return err
			}
		}
		return nil
	})
}

func (d *dcpJudge) rollback() error {
	return d.with(0, nil, func(feed *Feed) error {
		vbid, vbuuid, high, err := d.somewhere(feed)
		if err != nil {
			return err
		}
		consumer := newConsumer()
		unknown := Position{vbuuid + 1, high, high, high}
		_, err = feed.open(vbid, unknown, endless, consumer, gocbcore.OpenStreamOptions{})
		var rollback gocbcore.DCPRollbackError
		if !errors.As(err, &rollback) {
			return all(errNoRollback, err)
		}
		if rollback.SeqNo != 0 {
			return fmt.Errorf("rolled back to %d, nothing is in common", rollback.SeqNo)
		}
		if _, err := feed.open(vbid, Position{}, high, consumer, gocbcore.OpenStreamOptions{}); err != nil {
			return err
		}
		return consumer.until("the stream's end", func() bool { return consumer.isEnded(1) })
	})
}

func (d *dcpJudge) closed() error {
	return d.with(0, nil, func(feed *Feed) error {
		consumer := newConsumer()
		if err := feed.openAll(nil, consumer, gocbcore.OpenStreamOptions{}); err != nil {
			return err
		}
		if err := each(feed.vbuckets, func(number int) error { return feed.closeStream(uint16(number)) }); err != nil {
			return err
		}
		if err := consumer.until("the streams' ends", func() bool { return len(consumer.ends) == feed.vbuckets }); err != nil {
			return err
		}
		for _, err := range consumer.ends {
			if !errors.Is(err, gocbcore.ErrDCPStreamClosed) {
				return fmt.Errorf("a stream that was closed ended with: %v", err)
			}
		}
		return nil
	})
}

func (d *dcpJudge) ordered() error {
	for _, order := range []gocbcore.DCPBackfillOrder{gocbcore.DCPBackfillOrderRoundRobin, gocbcore.DCPBackfillOrderSequential} {
		configure := func(config *gocbcore.DCPAgentConfig) {
			config.DCPConfig.BackfillOrder = order
			config.DCPConfig.AgentPriority = gocbcore.DcpAgentPriorityHigh
		}
		if err := d.with(0, configure, func(feed *Feed) error {
			consumer, err := d.drained(feed, gocbcore.OpenStreamOptions{})
			if err != nil {
				return err
			}
			return consumer.differs(d.of(0, 1, 2))
		}); err != nil {
			return err
		}
	}
	return nil
}

func (d *dcpJudge) changeStreams() error {
	history := func(config *gocbcore.DCPAgentConfig) { config.DCPConfig.UseChangeStreams = true }
	var versions int
	err := d.with(0, history, func(feed *Feed) error {
		consumer, err := d.drained(feed, gocbcore.OpenStreamOptions{})
		if err != nil {
			return err
		}
		versions = consumer.events["mutation"]
		return consumer.differs(d.of(0, 1, 2))
	})
	if !d.settings.history {
		return want(errors.Is(err, gocbcore.ErrUnsupportedOperation), "expected a refusal, got %v", err)
	}
	// A third of the documents was written twice, a tenth was removed: with their history more come than are left.
	return all(err, want(versions > len(d.of(0, 1, 2)), "%d versions came", versions))
}

// restarted resumes every stream where it was cut off; a node that kept nothing has to roll it back.
func (d *dcpJudge) restarted() error {
	return d.with(0, nil, func(feed *Feed) error {
		expected := d.of(0, 1, 2)
		expected[document{d.ids[0], "last:before"}] = hashed([]byte(`{}`))
		consumer := newConsumer()
		if err := feed.openAll(nil, consumer, gocbcore.OpenStreamOptions{}); err != nil {
			return err
		}
		logs := map[uint16]gocbcore.VbUUID{}
		for vbid := 0; vbid < feed.vbuckets; vbid++ {
			log, err := feed.failoverLog(uint16(vbid))
			if err != nil {
				return err
			}
			logs[uint16(vbid)] = log[0].VbUUID
		}
		last := document{d.ids[0], "last:before"}
		if err := d.put(0, last.key, `{}`, 0); err != nil {
			return err
		}
		arrived := func() bool {
			_, isThere := consumer.present[last]
			return isThere && len(consumer.present) == len(expected)
		}
		if err := all(consumer.until("all documents", arrived), consumer.differs(expected)); err != nil {
			return err
		}
		if err := order("restart"); err != nil {
			return err
		}
		if err := consumer.until("the streams' ends", func() bool { return len(consumer.ends) == feed.vbuckets }); err != nil {
			return err
		}
		if err := eventually(func() error { _, err := feed.failoverLog(0); return err }); err != nil {
			return fmt.Errorf("the DCP agent did not come back: %w", err)
		}
		if err := eventually(func() error { return d.put(0, "first:after", `{"a":1}`, 0) }); err != nil {
			return fmt.Errorf("the key-value agent did not come back: %w", err)
		}
		again := newConsumer()
		if d.settings.kept {
			again.present = consumer.present
		} else {
			expected = map[document]uint64{}
		}
		expected[document{d.ids[0], "first:after"}] = hashed([]byte(`{"a":1}`))
		for vbid := uint16(0); int(vbid) < feed.vbuckets; vbid++ {
			seqno, snapshot := gocbcore.SeqNo(consumer.last[vbid]), consumer.snapshots[vbid]
			from := Position{logs[vbid], seqno, gocbcore.SeqNo(snapshot[0]), gocbcore.SeqNo(snapshot[1])}
			_, err := feed.open(vbid, from, endless, again, gocbcore.OpenStreamOptions{})
			var rollback gocbcore.DCPRollbackError
			isRolledBack := errors.As(err, &rollback)
			if err := want(isRolledBack != d.settings.kept || seqno == 0, "vbucket %d from %d: %v", vbid, seqno, err); err != nil {
				return err
			}
			if isRolledBack {
				_, err = feed.open(vbid, Position{}, endless, again, gocbcore.OpenStreamOptions{})
			}
			if err != nil {
				return fmt.Errorf("vbucket %d: %w", vbid, err)
			}
		}
		isThere := func() bool { return len(again.present) == len(expected) }
		return all(again.until("what was written afterwards", isThere), again.differs(expected))
	})
}

// eventually tries until it works.
func eventually(try func() error) error {
	end := time.Now().Add(readyTimeout)
	for {
		err := try()
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}
