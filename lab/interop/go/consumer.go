package main

import (
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"github.com/couchbase/gocbcore/v10"
)

// id of a document: its collection and its key.
type document struct {
	collection uint32
	key        string
}

func hashed(value []byte) uint64 {
	hash := fnv.New64a()
	_, _ = hash.Write(value)
	return hash.Sum64()
}

// Consumer takes what streams bring: what there is, by hash, and what happened, by count. Streams of one agent come
// from one goroutine a connection, so a lock is enough.
type Consumer struct {
	sync.Mutex
	present   map[document]uint64
	deleted   map[document]bool
	expired   map[document]bool
	last      map[uint16]uint64
	snapshots map[uint16][2]uint64
	ends      []error
	events    map[string]int
	bytes     int
	created   map[string]bool
	streamIDs map[uint16]int
	wrong     error
	changed   chan struct{}
	// The stream of a vbucket gives seqnos that rise, except within a snapshot that is out of order.
	unordered map[uint16]bool
}

func newConsumer() *Consumer {
	return &Consumer{
		present: map[document]uint64{}, deleted: map[document]bool{}, expired: map[document]bool{},
		last: map[uint16]uint64{}, snapshots: map[uint16][2]uint64{}, events: map[string]int{},
		created: map[string]bool{}, streamIDs: map[uint16]int{}, unordered: map[uint16]bool{},
		changed: make(chan struct{}, 1),
	}
}

func (c *Consumer) note(event string, vbid uint16, streamID uint16, seqno uint64) {
	c.events[event]++
	c.streamIDs[streamID]++
	if seqno > 0 {
		key := vbid
		if !c.unordered[vbid] && len(c.streamIDs) == 1 && seqno <= c.last[key] {
			c.wrong = fmt.Errorf("vbucket %d: seqno %d after %d", vbid, seqno, c.last[key])
		}
		if snapshot := c.snapshots[vbid]; !c.unordered[vbid] && len(c.streamIDs) == 1 &&
			(seqno < snapshot[0] || seqno > snapshot[1]) {
			c.wrong = fmt.Errorf("vbucket %d: seqno %d outside of its snapshot %v", vbid, seqno, snapshot)
		}
		c.last[key] = max(seqno, c.last[key])
	}
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// SnapshotMarker of the library's interface; so are all that follow.
func (c *Consumer) SnapshotMarker(m gocbcore.DcpSnapshotMarker) {
	c.Lock()
	defer c.Unlock()
	c.snapshots[m.VbID] = [2]uint64{m.StartSeqNo, m.EndSeqNo}
	c.note("marker", m.VbID, m.StreamID, 0)
	if m.SnapshotType.HasOnDisk() {
		c.events["disk marker"]++
	}
}

func (c *Consumer) Mutation(m gocbcore.DcpMutation) {
	c.Lock()
	defer c.Unlock()
	id := document{m.CollectionID, string(m.Key)}
	c.present[id] = hashed(m.Value)
	delete(c.deleted, id)
	c.bytes += len(m.Value)
	c.note("mutation", m.VbID, m.StreamID, m.SeqNo)
}

func (c *Consumer) Deletion(d gocbcore.DcpDeletion) {
	c.Lock()
	defer c.Unlock()
	id := document{d.CollectionID, string(d.Key)}
	delete(c.present, id)
	c.deleted[id] = true
	c.note("deletion", d.VbID, d.StreamID, d.SeqNo)
}

func (c *Consumer) Expiration(e gocbcore.DcpExpiration) {
	c.Lock()
	defer c.Unlock()
	id := document{e.CollectionID, string(e.Key)}
	delete(c.present, id)
	c.expired[id] = true
	c.note("expiration", e.VbID, e.StreamID, e.SeqNo)
}

func (c *Consumer) End(e gocbcore.DcpStreamEnd, err error) {
	c.Lock()
	defer c.Unlock()
	c.ends = append(c.ends, err)
	c.note("end", e.VbID, e.StreamID, 0)
}

func (c *Consumer) CreateCollection(e gocbcore.DcpCollectionCreation) {
	c.Lock()
	defer c.Unlock()
	c.created[string(e.Key)] = true
	c.note("collection created", e.VbID, e.StreamID, e.SeqNo)
}

func (c *Consumer) CreateScope(e gocbcore.DcpScopeCreation) {
	c.Lock()
	defer c.Unlock()
	c.created[string(e.Key)] = true
	c.note("scope created", e.VbID, e.StreamID, e.SeqNo)
}

func (c *Consumer) DeleteCollection(e gocbcore.DcpCollectionDeletion) {
	c.Lock()
	defer c.Unlock()
	c.note("collection dropped", e.VbID, e.StreamID, e.SeqNo)
}

func (c *Consumer) FlushCollection(e gocbcore.DcpCollectionFlush) {
	c.Lock()
	defer c.Unlock()
	c.note("collection flushed", e.VbID, e.StreamID, e.SeqNo)
}

func (c *Consumer) DeleteScope(e gocbcore.DcpScopeDeletion) {
	c.Lock()
	defer c.Unlock()
	c.note("scope dropped", e.VbID, e.StreamID, e.SeqNo)
}

func (c *Consumer) ModifyCollection(e gocbcore.DcpCollectionModification) {
	c.Lock()
	defer c.Unlock()
	c.note("collection modified", e.VbID, e.StreamID, e.SeqNo)
}

func (c *Consumer) OSOSnapshot(s gocbcore.DcpOSOSnapshot) {
	c.Lock()
	defer c.Unlock()
	c.unordered[s.VbID] = s.SnapshotType == 1
	c.note("oso", s.VbID, s.StreamID, 0)
}

func (c *Consumer) SeqNoAdvanced(s gocbcore.DcpSeqNoAdvanced) {
	c.Lock()
	defer c.Unlock()
	c.note("advanced", s.VbID, s.StreamID, s.SeqNo)
}

// until waits for a claim about the consumer to hold.
func (c *Consumer) until(what string, holds func() bool) error {
	end := time.After(opTimeout)
	for {
		c.Lock()
		isDone, wrong := holds(), c.wrong
		c.Unlock()
		if wrong != nil {
			return wrong
		}
		if isDone {
			return nil
		}
		select {
		case <-c.changed:
		case <-end:
			c.Lock()
			defer c.Unlock()
			return fmt.Errorf("%s: not in time, saw %v, ends %v", what, c.events, c.ends)
		}
	}
}

// differs says where the consumer's documents are not the expected ones.
func (c *Consumer) differs(expected map[document]uint64) error {
	c.Lock()
	defer c.Unlock()
	for id, hash := range expected {
		if found, isThere := c.present[id]; !isThere {
			return fmt.Errorf("%v did not come", id)
		} else if found != hash {
			return fmt.Errorf("%v came with another value", id)
		}
	}
	for id := range c.present {
		if _, isExpected := expected[id]; !isExpected {
			return fmt.Errorf("%v came, and should not be there", id)
		}
	}
	return c.wrong
}

// isEnded says whether that many streams have ended, all of them well.
func (c *Consumer) isEnded(streams int) bool {
	if len(c.ends) < streams {
		return false
	}
	for _, err := range c.ends {
		if err != nil {
			c.wrong = fmt.Errorf("a stream ended with: %w", err)
		}
	}
	return true
}

var errNoRollback = errors.New("the stream was taken without a rollback")
