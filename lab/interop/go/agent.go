package main

import (
	"fmt"
	"time"

	"github.com/couchbase/gocbcore/v10"
)

// newAgent is a key-value agent that is ready.
func newAgent(settings Settings) (*gocbcore.Agent, error) {
	security, err := settings.security()
	if err != nil {
		return nil, err
	}
	config := gocbcore.AgentConfig{}
	if err := config.FromConnStr(settings.connect); err != nil {
		return nil, err
	}
	config.BucketName = settings.bucket
	config.SecurityConfig = security
	config.IoConfig.UseMutationTokens = true
	config.IoConfig.UseCollections = true
	config.IoConfig.UseDurations = true
	config.CompressionConfig.Enabled = true
	agent, err := gocbcore.CreateAgent(&config)
	if err != nil {
		return nil, err
	}
	_, err = wait(func(done func(*gocbcore.WaitUntilReadyResult, error)) (gocbcore.PendingOp, error) {
		options := gocbcore.WaitUntilReadyOptions{ServiceTypes: []gocbcore.ServiceType{gocbcore.MemdService}}
		return agent.WaitUntilReady(time.Now().Add(readyTimeout), options, done)
	})
	if err != nil {
		_ = agent.Close()
		return nil, fmt.Errorf("the key-value agent was not ready: %w", err)
	}
	return agent, nil
}

// Keyspace is a collection and the operations on it.
type Keyspace struct {
	agent             *gocbcore.Agent
	scope, collection string
}

func soon() time.Time { return time.Now().Add(opTimeout) }

func (k Keyspace) set(key string, value []byte, expiry uint32) (*gocbcore.StoreResult, error) {
	return wait(func(done func(*gocbcore.StoreResult, error)) (gocbcore.PendingOp, error) {
		return k.agent.Set(gocbcore.SetOptions{
			Key: []byte(key), Value: value, Expiry: expiry, Flags: jsonFlags, Deadline: soon(),
			ScopeName: k.scope, CollectionName: k.collection,
		}, done)
	})
}

func (k Keyspace) add(key string, value []byte) (*gocbcore.StoreResult, error) {
	return wait(func(done func(*gocbcore.StoreResult, error)) (gocbcore.PendingOp, error) {
		return k.agent.Add(gocbcore.AddOptions{
			Key: []byte(key), Value: value, Flags: jsonFlags, Deadline: soon(),
			ScopeName: k.scope, CollectionName: k.collection,
		}, done)
	})
}

func (k Keyspace) replace(key string, value []byte, cas gocbcore.Cas) (*gocbcore.StoreResult, error) {
	return wait(func(done func(*gocbcore.StoreResult, error)) (gocbcore.PendingOp, error) {
		return k.agent.Replace(gocbcore.ReplaceOptions{
			Key: []byte(key), Value: value, Cas: cas, Flags: jsonFlags, Deadline: soon(),
			ScopeName: k.scope, CollectionName: k.collection,
		}, done)
	})
}

func (k Keyspace) get(key string) (*gocbcore.GetResult, error) {
	return wait(func(done func(*gocbcore.GetResult, error)) (gocbcore.PendingOp, error) {
		return k.agent.Get(gocbcore.GetOptions{
			Key: []byte(key), Deadline: soon(), ScopeName: k.scope, CollectionName: k.collection,
		}, done)
	})
}

func (k Keyspace) remove(key string, cas gocbcore.Cas) (*gocbcore.DeleteResult, error) {
	return wait(func(done func(*gocbcore.DeleteResult, error)) (gocbcore.PendingOp, error) {
		return k.agent.Delete(gocbcore.DeleteOptions{
			Key: []byte(key), Cas: cas, Deadline: soon(), ScopeName: k.scope, CollectionName: k.collection,
		}, done)
	})
}

// id is the collection's.
func (k Keyspace) id() (uint32, error) {
	got, err := wait(func(done func(*gocbcore.GetCollectionIDResult, error)) (gocbcore.PendingOp, error) {
		return k.agent.GetCollectionID(k.scope, k.collection, gocbcore.GetCollectionIDOptions{Deadline: soon()}, done)
	})
	if err != nil {
		return 0, err
	}
	return got.CollectionID, nil
}

// each does something for all numbers below count, some of them at a time.
func each(count int, do func(number int) error) error {
	const lanes = 64
	numbers, failures := make(chan int), make(chan error, lanes)
	for lane := 0; lane < lanes; lane++ {
		go func() {
			var first error
			for number := range numbers {
				if first == nil {
					first = do(number)
				}
			}
			failures <- first
		}()
	}
	for number := 0; number < count; number++ {
		numbers <- number
	}
	close(numbers)
	var found error
	for lane := 0; lane < lanes; lane++ {
		if err := <-failures; err != nil && found == nil {
			found = err
		}
	}
	return found
}
