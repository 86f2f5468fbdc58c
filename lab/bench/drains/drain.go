// Reads a bucket through gocbcore until so many mutations have come, and drops them.
//
//	drain CONNECTION-STRING COUNT
package main

import (
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
)

const patience = 300 * time.Second

type observer struct {
	count  atomic.Int64
	wanted int64
	done   chan struct{}
}

func (o *observer) SnapshotMarker(gocbcore.DcpSnapshotMarker) {}

func (o *observer) Mutation(gocbcore.DcpMutation) {
	if o.count.Add(1) == o.wanted {
		close(o.done)
	}
}

func (o *observer) Deletion(gocbcore.DcpDeletion)                       {}
func (o *observer) Expiration(gocbcore.DcpExpiration)                   {}
func (o *observer) End(gocbcore.DcpStreamEnd, error)                    {}
func (o *observer) CreateCollection(gocbcore.DcpCollectionCreation)     {}
func (o *observer) DeleteCollection(gocbcore.DcpCollectionDeletion)     {}
func (o *observer) FlushCollection(gocbcore.DcpCollectionFlush)         {}
func (o *observer) CreateScope(gocbcore.DcpScopeCreation)               {}
func (o *observer) DeleteScope(gocbcore.DcpScopeDeletion)               {}
func (o *observer) ModifyCollection(gocbcore.DcpCollectionModification) {}
func (o *observer) OSOSnapshot(gocbcore.DcpOSOSnapshot)                 {}
func (o *observer) SeqNoAdvanced(gocbcore.DcpSeqNoAdvanced)             {}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	wanted, err := strconv.ParseInt(os.Args[2], 10, 64)
	must(err)
	config := gocbcore.DCPAgentConfig{}
	must(config.FromConnStr(os.Args[1]))
	config.BucketName = "default"
	config.SecurityConfig.Auth = gocbcore.PasswordAuthProvider{Username: "Administrator", Password: "password"}
	config.IoConfig.UseCollections = true
	agent, err := gocbcore.CreateDcpAgent(&config, "bench-drain", memd.DcpOpenFlagProducer)
	must(err)
	ready := make(chan error, 1)
	_, err = agent.WaitUntilReady(time.Now().Add(patience), gocbcore.WaitUntilReadyOptions{
		ServiceTypes: []gocbcore.ServiceType{gocbcore.MemdService},
	}, func(_ *gocbcore.WaitUntilReadyResult, err error) { ready <- err })
	must(err)
	must(<-ready)
	snapshot, err := agent.ConfigSnapshot()
	must(err)
	vbuckets, err := snapshot.NumVbuckets()
	must(err)
	seen := &observer{wanted: wanted, done: make(chan struct{})}
	opened := make(chan error, vbuckets)
	for vbid := 0; wanted > 0 && vbid < vbuckets; vbid++ {
		_, err := agent.OpenStream(uint16(vbid), memd.DcpStreamAddFlagActiveOnly, 0, 0, gocbcore.SeqNo(^uint64(0)), 0, 0,
			seen, gocbcore.OpenStreamOptions{}, func(_ []gocbcore.FailoverEntry, err error) { opened <- err })
		must(err)
	}
	for vbid := 0; wanted > 0 && vbid < vbuckets; vbid++ {
		must(<-opened)
	}
	if wanted > 0 {
		select {
		case <-seen.done:
		case <-time.After(patience):
			must(fmt.Errorf("only %d of %d came", seen.count.Load(), wanted))
		}
	}
	fmt.Println(seen.count.Load())
}
